// The page's WebSockets to its host: one is always on offer, each that the host begins to use gets a session.
// Reconnects by itself. Not here: what is said (session.js) and what is shown (view.js).

import { Session } from "./session.js";

const PROTOCOL = "tapestry.1";
const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 5000;
/** Sessions in one tab at most: each has a WebGPU device of its own. */
const MOST_SESSIONS = 8;

export class Connections {
  #wait = FIRST_WAIT_MS;
  #driven = 0;
  #idle = false;

  /**
   * @param {{token: string, openDevice: Function, store: object, view: object}} parts `view.connection(state, count)`
   *   is told "connecting", "refused", "waiting" or "driven", and how many sessions there are
   */
  constructor(parts) {
    Object.assign(this, parts);
  }

  /** Put a connection on offer, unless there is one. */
  offer() {
    if (this.#idle || this.#driven >= MOST_SESSIONS) return;
    this.#idle = true;
    this.#tell("connecting");
    const socket = new WebSocket(new URL("agent", location.href.replace(/^http/, "ws")), [
      PROTOCOL,
      `token.${this.token}`,
    ]);
    socket.binaryType = "arraybuffer";
    const link = { socket, session: null, work: Promise.resolve(), ended: false, opened: false };
    socket.addEventListener("open", () => {
      link.opened = true;
      this.#wait = FIRST_WAIT_MS;
      this.#tell("waiting");
    });
    socket.addEventListener("message", ({ data }) => this.#take(link, data));
    socket.addEventListener("close", () => this.#end(link));
  }

  #take(link, data) {
    if (link.session === null) {
      link.session = new Session(this.openDevice, this.store, this.view);
      this.#idle = false;
      this.#driven += 1;
      this.#tell("driven");
      this.offer();
    }
    // One after the other, whatever each waits for.
    link.work = link.work.then(() => this.#answer(link, data));
  }

  async #answer(link, data) {
    const { session, socket } = link;
    if (session.finished) return;
    const answer = await session.handle(data);
    if (link.ended) {
      session.close(); // it may have opened its device after the end
    } else if (answer !== null) {
      socket.send(answer);
    }
    if (session.finished) socket.close();
  }

  #end(link) {
    link.ended = true;
    if (link.session !== null) {
      // At once, not in turn: what runs may never come to an end.
      link.session.close();
      this.#driven -= 1;
      this.#tell(this.#idle ? "waiting" : "connecting");
      this.offer();
      return;
    }
    this.#idle = false;
    if (!link.opened) this.#explain();
    else this.#tell("connecting");
    setTimeout(() => this.offer(), this.#wait * (0.75 + Math.random() / 2));
    this.#wait = Math.min(2 * this.#wait, LONGEST_WAIT_MS);
  }

  /** A host that gives the page and refuses the connection does not know the token. */
  async #explain() {
    const there = await fetch("/", { cache: "no-store" }).then(({ ok }) => ok, () => false);
    this.#tell(there ? "refused" : "connecting");
  }

  #tell(state) {
    this.view.connection(this.#driven ? "driven" : state, this.#driven);
  }
}
