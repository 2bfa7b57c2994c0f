// What the page shows: connection, work, adapter, last error. It is told of what happens and draws a few times a second.

const DRAW_MS = 200;
const STATES = {
  connecting: ["Connecting", "No host answers yet. The page tries again by itself."],
  refused: ["Refused", "The host does not accept this page. Open the address that tapestry has printed, all of it."],
  waiting: ["Ready", "Connected. The host has nothing for this tab to do yet."],
  driven: ["Driven", "The host is using this device. Keep this tab in the foreground."],
  unusable: ["No WebGPU", "This browser cannot be a device."],
};
const NOTHING = "nothing";
const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"];

export class View {
  #shown = {
    state: "connecting", usable: true, sessions: 0, command: NOTHING, commands: 0, launches: 0, kernel: "–", moved: 0,
    held: 0, error: "", errorAt: null,
  };
  #timer = null;

  /** @param {Document} page with elements whose ids are the names below */
  constructor(page) {
    this.page = page;
    this.#draw();
  }

  connection(state, sessions) {
    this.#set({ state, sessions, ...(sessions ? {} : { command: NOTHING, held: 0 }) });
  }

  command(command) {
    this.#set({ command, commands: this.#shown.commands + 1 });
  }

  done() {
    this.#set({ command: NOTHING });
  }

  launches(count, kernel) {
    this.#set({ launches: this.#shown.launches + count, ...(kernel ? { kernel } : {}) });
  }

  unusable(text) {
    this.#set({ usable: false });
    this.error(text);
  }

  bytes(count) {
    this.#set({ moved: this.#shown.moved + count });
  }

  memory(held) {
    this.#set({ held });
  }

  error(text) {
    this.#set({ error: text, errorAt: new Date() });
  }

  /** The adapter: a description and rows of [name, value]. */
  adapter(description, rows) {
    this.page.getElementById("adapter").textContent = description;
    const body = this.page.getElementById("limits");
    body.replaceChildren(
      ...rows.map(([name, value]) => {
        const row = this.page.createElement("tr");
        const head = this.page.createElement("th");
        head.scope = "row";
        head.textContent = name;
        const cell = this.page.createElement("td");
        cell.textContent = value;
        row.append(head, cell);
        return row;
      }),
    );
  }

  #set(changes) {
    Object.assign(this.#shown, changes);
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.#draw();
    }, DRAW_MS);
  }

  #draw() {
    const { usable, sessions, command, commands, launches, kernel, moved, held, error, errorAt } = this.#shown;
    const state = usable ? this.#shown.state : "unusable";
    const [word, sentence] = STATES[state];
    this.#text("state", word);
    this.page.getElementById("state").dataset.state = state;
    this.#text("sentence", sentence);
    this.#text("sessions", String(sessions));
    this.#text("command", command);
    this.#text("commands", commands.toLocaleString());
    this.#text("launches", launches.toLocaleString());
    this.#text("kernel", kernel);
    this.#text("moved", sized(moved));
    this.#text("held", sized(held));
    this.#text("error", error || "none");
    this.#text("error-time", errorAt === null ? "" : `at ${errorAt.toLocaleTimeString()}`);
  }

  #text(id, text) {
    const element = this.page.getElementById(id);
    if (element.textContent !== text) element.textContent = text; // screen readers speak of changes only
  }
}

/** A number of bytes for people: "12.3 MiB". */
export function sized(bytes) {
  let unit = 0;
  let value = bytes;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? value.toFixed(1) : value} ${UNITS[unit]}`;
}
