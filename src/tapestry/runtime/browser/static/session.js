// The serving side of one connection: a message in, at most one answer out. No socket, no page, no WebGPU.
// The same rules as tapestry.runtime.protocol.session. It trusts nothing that it is sent.

import { TapestryError, kindOf, textOf, unsupported, usage } from "./errors.js";
import { HANDSHAKE_LIMITS, LIMITS, joinFrame, parseFrame } from "./framing.js";
import { decode, encode } from "./messagepack.js";
import { decodeEnvelope, readRequest } from "./messages.js";

const PROTOCOL_VERSION = 1;
/** Messages that mean nothing once an earlier pipelined one has failed. */
const DEPENDENT = new Set(["write", "read", "submit", "time", "sync"]);
/** Messages that end with the device's answer, so that an error of an earlier one is known by then. */
const WAITING = new Set(["read", "time", "sync"]);
const TAKES_PAYLOAD = new Set(["write", "module"]);

/**
 * The device behind a session, as device.js has it: `alloc`, `free`, `write`, `read`, `load`, `unload`, `submit`,
 * `time`, `sync`, `log`, `stats`, `close`, `info`, and `takeFault`, which waits until everything handed over has been
 * checked and gives the first error of those that nobody has been told of, as {command, error}, or null.
 */
export class Session {
  #device = null;
  #buffers = new Map();
  #modules = new Map();
  #fault = null;

  /**
   * @param {(name: string) => Promise<object>} openDevice
   * @param {import("./store.js").ModuleStore} store
   * @param {{command?: Function, done?: Function, error?: Function}} observer told what happens, for the page
   */
  constructor(openDevice, store, observer = {}) {
    this.openDevice = openDevice;
    this.store = store;
    this.observer = observer;
    this.finished = false;
  }

  get device() {
    return this.#device;
  }

  get limits() {
    return this.#device === null ? HANDSHAKE_LIMITS : LIMITS;
  }

  /** Carry out one message (an ArrayBuffer); the bytes to answer, or null. After a fatal one `finished` is true. */
  async handle(message) {
    let envelope;
    let payload;
    try {
      const frame = parseFrame(message, this.limits);
      envelope = decodeEnvelope(frame.header);
      payload = frame.payload;
    } catch (error) {
      return this.#fatal(0, error, "");
    }
    if (this.#device === null) return this.#greet(envelope);
    const { op, id } = envelope;
    this.observer.command?.(op);
    try {
      const request = readRequest(envelope);
      if (op === "hello") throw usage("hello may be sent once, as the first message");
      if (payload.length && !TAKES_PAYLOAD.has(op)) throw usage(`${op} takes no payload, got ${payload.length} bytes`);
      if (WAITING.has(op)) await this.#learnFault();
      if (this.#fault !== null && DEPENDENT.has(op)) return this.#reportFault(id);
      const { result = {}, payload: answer } = (await this[`_${op}`](request, payload)) ?? {};
      if (id && !WAITING.has(op)) await this.#confirm(op);
      return id ? reply(id, result, answer) : null;
    } catch (error) {
      return this.#failed(id, op, error);
    } finally {
      this.observer.done?.();
    }
  }

  /** End the session and close its device. */
  close() {
    this.finished = true;
    this.#device?.close();
  }

  async #greet(envelope) {
    try {
      if (envelope.op !== "hello" || !envelope.id) throw usage("the first message must be a hello with an id");
      const hello = readRequest(envelope);
      if (hello.protocol !== PROTOCOL_VERSION) {
        throw usage(
          `this side speaks protocol ${PROTOCOL_VERSION}, the client ${hello.protocol}: load the page again`,
        );
      }
      this.#device = await this.openDevice(hello.device);
    } catch (error) {
      return this.#fatal(envelope.id, error, "hello");
    }
    const { info } = this.#device;
    return reply(envelope.id, { protocol: PROTOCOL_VERSION, info, limits: LIMITS, modules: this.store.digests() });
  }

  #fatal(id, error, command) {
    this.finished = true;
    this.observer.error?.(textOf(error));
    return failure(id, error, command, true);
  }

  #failed(id, command, error) {
    this.observer.error?.(`${command}: ${textOf(error)}`);
    if (id) return failure(id, error, command, false);
    this.#fault ??= { command, error };
    return null;
  }

  async #learnFault() {
    const found = await this.#device.takeFault();
    if (found !== null) this.#failed(0, found.command, found.error);
  }

  /** A message that is answered is answered with its own error; one of an earlier message is kept. */
  async #confirm(op) {
    const found = await this.#device.takeFault();
    if (found === null) return;
    if (found.command === op) throw found.error;
    this.#failed(0, found.command, found.error);
  }

  #reportFault(id) {
    if (!id) return null;
    const { command, error } = this.#fault;
    this.#fault = null;
    return failure(id, error, command, false);
  }

  _info() {
    return { result: this.#device.info };
  }

  _alloc({ buffer, nbytes, id }) {
    if (this.#buffers.has(buffer)) throw usage(`buffer ${buffer} exists already`);
    if (!id) this.#buffers.set(buffer, null); // a failure of this one is not followed by one per use
    this.#buffers.set(buffer, this.#device.alloc(nbytes));
  }

  _free({ buffer }) {
    if (!this.#buffers.has(buffer)) throw usage(`there is no buffer ${buffer}`);
    const memory = this.#buffers.get(buffer);
    this.#buffers.delete(buffer);
    if (memory !== null) this.#device.free(memory);
  }

  async _write({ buffer, offset }, payload) {
    const memory = this.#buffer(buffer);
    checkSpan(buffer, memory, payload.length, offset);
    if (payload.length) await this.#device.write(memory, offset, payload);
  }

  async _read({ buffer, nbytes, offset }) {
    if (nbytes > LIMITS.payload_bytes) {
      throw usage(`a read of ${nbytes} bytes is over the limit of ${LIMITS.payload_bytes}`);
    }
    const memory = this.#buffer(buffer);
    checkSpan(buffer, memory, nbytes, offset);
    return { payload: await this.#device.read(memory, offset, nbytes) };
  }

  async _module({ digest, nbytes, offset }, payload) {
    await this.store.addPart(digest, nbytes, offset, payload, LIMITS.module_bytes);
  }

  async _load({ module, digest, id }) {
    if (this.#modules.has(module)) throw usage(`module ${module} exists already`);
    if (!id) this.#modules.set(module, null);
    const encoded = this.store.get(digest);
    if (encoded === undefined) {
      throw new TapestryError("missing", `module ${digest.slice(0, 12)} is not here: send it first`);
    }
    this.#modules.set(module, await this.#device.load(readModule(encoded, digest)));
  }

  _unload({ module }) {
    if (!this.#modules.has(module)) throw usage(`there is no module ${module}`);
    const program = this.#modules.get(module);
    this.#modules.delete(module);
    if (program !== null) this.#device.unload(program);
  }

  async _submit({ commands }) {
    await this.#device.submit(commands.map((command) => this.#resolved(command)));
  }

  async _time({ commands, repeats }) {
    const resolved = commands.map((command) => this.#resolved(command));
    return { result: { seconds: await this.#device.time(resolved, repeats) } };
  }

  async _sync() {
    await this.#device.sync();
  }

  _log({ clear }) {
    return { result: { entries: this.#device.log(clear) } };
  }

  _stats() {
    return { result: this.#device.stats() };
  }

  _ping() {}

  _close() {
    this.close();
  }

  #buffer(id) {
    const memory = this.#buffers.get(id);
    if (!memory || memory.failed) throw usage(`there is no buffer ${id}`);
    return memory;
  }

  #program(id) {
    const program = this.#modules.get(id);
    if (!program) throw usage(`there is no module ${id}`);
    return program;
  }

  #resolved(command) {
    if (command.kind === "call") {
      throw usage(`module ${command.module} holds kernels: use launch, not call`);
    }
    if (command.kind === "launch") return this.#resolvedLaunch(command);
    const source = this.#buffer(command.source);
    const target = this.#buffer(command.target);
    checkSpan(command.source, source, command.nbytes, command.source_offset);
    checkSpan(command.target, target, command.nbytes, command.target_offset);
    if (source === target && Math.abs(command.source_offset - command.target_offset) < command.nbytes) {
      throw usage(`a copy of ${command.nbytes} bytes overlaps itself in buffer ${command.source}`);
    }
    return { ...command, source, target };
  }

  #resolvedLaunch({ module, kernel, args, grid, block, tag }) {
    const program = this.#program(module);
    const found = program.kernels.get(kernel);
    if (found === undefined) {
      throw usage(`module ${module} has no kernel '${kernel}', it has ${[...program.kernels.keys()].join(", ")}`);
    }
    const buffers = args.filter((entry) => typeof entry === "number").map((id) => this.#buffer(id));
    const scalars = args.filter((entry) => typeof entry !== "number");
    if (buffers.length !== found.access.length) {
      throw usage(`kernel ${kernel} takes ${found.access.length} buffers, got ${buffers.length}`);
    }
    return { kind: "launch", kernel: found, buffers, scalars, grid, block, tag };
  }
}

function readModule(encoded, digest) {
  const what = `module ${digest.slice(0, 12)}`;
  let module;
  try {
    module = decode(encoded);
  } catch (error) {
    throw usage(`${what} is not an encoded module: ${error.message}`);
  }
  if (module?.type === "artifact") throw unsupported(`a browser runs WGSL kernels, not artifacts of ${module.loader}`);
  const kernels = module?.kernels;
  const right =
    module?.type === "kernels" && typeof module.language === "string" && typeof module.source === "string" &&
    Array.isArray(kernels) && kernels.every(isKernel);
  if (!right) throw usage(`${what} is not an encoded module`);
  return module;
}

function isKernel(kernel) {
  return (
    kernel !== null && typeof kernel === "object" && typeof kernel.name === "string" &&
    typeof kernel.access === "string" && /^[rwx]*$/.test(kernel.access) && typeof (kernel.source ?? "") === "string"
  );
}

function checkSpan(id, memory, nbytes, offset) {
  if (offset + nbytes > memory.nbytes) {
    throw usage(`bytes ${offset} to ${offset + nbytes} lie outside buffer ${id}, which has ${memory.nbytes} bytes`);
  }
}

function reply(id, result, payload) {
  return joinFrame(encode({ op: "reply", id, result }), payload);
}

function failure(id, error, command, fatal) {
  return joinFrame(encode({ op: "error", id, kind: kindOf(error), message: textOf(error), command, fatal }));
}

