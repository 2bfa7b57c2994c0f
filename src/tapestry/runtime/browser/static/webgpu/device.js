// The WebGPU device of a session: memory, batches of commands in one encoder each, errors that come later, timing.
// What reaches it names things that exist (session.js); limits are checked here. Not here: kernels, the adapter.

import { deviceError, grouped, lost, unsupported } from "../errors.js";
import { information, request } from "./adapter.js";
import { Batch, checkLaunch } from "./commands.js";
import { BindGroups, build, checkSharing, forgetGroups, packScalars, shortened } from "./kernels.js";
import { Timer } from "./timing.js";

/** WebGPU copies and writes whole words, and a vec4 must fit a binding of one. */
const WORD = 4;
const SMALLEST_BUFFER = 16;
const SMALLEST_STAGING = 64 << 10;
/** Bytes written after which the next write waits for the device: what is under way takes memory too. */
const WRITTEN_AT_ONCE = 64 << 20;
/** Launches after which an encoder is handed over, so that the device begins while the rest is encoded. */
const BATCH = 2048;
const SCOPES = ["validation", "out-of-memory", "internal"];

/** Opens the adapter of this browser under `name`. Environment and device errors as adapter.js says. */
export async function openDevice(name, observer = {}) {
  const { adapter, gpu } = await request();
  return new WebGpuDevice(gpu, await information(name || "browser", adapter, gpu), observer);
}

export class WebGpuDevice {
  #lost = null;
  #closed = false;
  #pending = [];
  #log = new Map();
  #numbers = 0;
  #buffers = 0;
  #bytes = 0;
  #modules = 0;
  #written = 0;
  #staging = null;
  #scratch = null;

  constructor(gpu, info, observer) {
    this.gpu = gpu;
    this.info = info;
    this.observer = observer;
    this.groups = new BindGroups(gpu);
    this.timer = info.features.includes("timestamps") ? new Timer(gpu) : null;
    gpu.lost.then(({ reason, message }) => {
      this.#lost = `${reason}: ${message || "no reason given"}`;
      if (!this.#closed) observer.error?.(`the device is lost (${this.#lost})`);
    });
    gpu.addEventListener("uncapturederror", ({ error }) => {
      this.#pending.push(Promise.resolve({ command: "submit", error: deviceError(shortened(error.message)) }));
    });
  }

  // Memory.

  alloc(nbytes) {
    const most = this.info.limits.max_buffer_bytes;
    if (nbytes > most) {
      throw unsupported(`a buffer of ${grouped(nbytes)} bytes is over the limit of ${grouped(most)} bytes`);
    }
    const size = Math.max(SMALLEST_BUFFER, padded(nbytes));
    const memory = { number: ++this.#numbers, nbytes, size, uses: [], failed: false, buffer: null };
    const usageBits = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    memory.buffer = this.#scoped(
      "alloc", `a buffer of ${grouped(size)} bytes failed`, () => this.gpu.createBuffer({ size, usage: usageBits }),
      () => {
        memory.failed = true;
        this.#forget(memory);
      },
    );
    this.#buffers += 1;
    this.#bytes += nbytes;
    this.observer.memory?.(this.#bytes);
    return memory;
  }

  free(memory) {
    if (memory.failed) return;
    this.#forget(memory);
    forgetGroups(memory);
    memory.buffer.destroy(); // WebGPU keeps it until submitted commands have finished
  }

  #forget({ nbytes }) {
    this.#buffers -= 1;
    this.#bytes -= nbytes;
    this.observer.memory?.(this.#bytes);
  }

  async write(memory, offset, data) {
    if (offset % WORD || data.length % WORD) ({ data, offset } = await this.#wholeWords(memory, data, offset));
    this.#scoped("write", "write failed", () => this.gpu.queue.writeBuffer(memory.buffer, offset, data));
    this.observer.bytes?.(data.length);
    this.#written += data.length;
    if (this.#written >= WRITTEN_AT_ONCE) {
      this.#written = 0;
      await this.gpu.queue.onSubmittedWorkDone();
    }
  }

  /** The data between what is in the first and the last word now. */
  async #wholeWords(memory, data, offset) {
    const start = offset - (offset % WORD);
    const end = padded(offset + data.length);
    const joined = new Uint8Array(end - start);
    joined.set(await this.#readWords(memory, start, WORD));
    joined.set(await this.#readWords(memory, end - WORD, WORD), end - WORD - start);
    joined.set(data, offset - start);
    return { data: joined, offset: start };
  }

  async read(memory, offset, nbytes) {
    if (nbytes === 0) {
      await this.sync();
      return new Uint8Array(0);
    }
    const start = offset - (offset % WORD);
    const words = await this.#readWords(memory, start, padded(offset + nbytes) - start);
    this.observer.bytes?.(nbytes);
    return words.subarray(offset - start, offset - start + nbytes);
  }

  async #readWords(memory, offset, nbytes) {
    const staging = this.#stagingFor(nbytes);
    this.#scoped("read", "read failed", () => {
      const encoder = this.gpu.createCommandEncoder();
      encoder.copyBufferToBuffer(memory.buffer, offset, staging, 0, nbytes);
      this.gpu.queue.submit([encoder.finish()]);
    });
    try {
      await staging.mapAsync(GPUMapMode.READ, 0, nbytes);
    } catch (error) {
      await this.#explain("read failed", error);
    }
    const copied = new Uint8Array(staging.getMappedRange(0, nbytes)).slice();
    staging.unmap();
    return copied;
  }

  #stagingFor(nbytes) {
    if (this.#staging === null || this.#staging.size < nbytes) {
      this.#staging?.destroy();
      const size = Math.max(SMALLEST_STAGING, 2 ** Math.ceil(Math.log2(nbytes)));
      this.#staging = this.#scoped("read", "the buffer for reading failed", () =>
        this.gpu.createBuffer({ size, usage: GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ }),
      );
    }
    return this.#staging;
  }

  // Programs.

  async load(module) {
    this.#requirePresent();
    const program = await build(this.gpu, module, this.info.limits);
    this.#requirePresent(); // what a lost device builds is of no use, and it says nothing
    this.#modules += 1;
    return program;
  }

  unload() {
    this.#modules -= 1; // pipelines end with the last reference
  }

  // Commands.

  async submit(commands) {
    this.#requirePresent();
    this.#check(commands);
    const launches = await this.#run(commands);
    for (const { kind, kernel, tag } of commands) {
      if (kind !== "launch") continue;
      const key = JSON.stringify([tag, kernel.name]);
      this.#log.set(key, (this.#log.get(key) ?? 0) + 1);
    }
    this.observer.launches?.(launches, commands.findLast(({ kind }) => kind === "launch")?.kernel.name);
  }

  /** Seconds of each of `repeats` runs after one to warm up, by the device's timestamps where it is all launches. */
  async time(commands, repeats) {
    this.#requirePresent();
    this.#check(commands);
    await this.#run(commands);
    await this.sync();
    const seconds = [];
    for (let repeat = 0; repeat < repeats; repeat++) seconds.push(await this.#timeOnce(commands));
    const fault = await this.takeFault();
    if (fault !== null) throw fault.error;
    return seconds;
  }

  async #timeOnce(commands) {
    if (this.timer !== null && commands.length <= BATCH && commands.every(({ kind }) => kind === "launch")) {
      const launches = await this.#run(commands, this.timer);
      const measured = launches ? await this.timer.seconds() : 0;
      if (measured > 0) return measured;
    }
    const start = performance.now();
    await this.#run(commands);
    await this.sync();
    return (performance.now() - start) / 1000;
  }

  /** Encodes and hands over all commands, which are checked; how many launches there were. */
  async #run(commands, timer = null) {
    const batch = new Batch(this.gpu, this.groups, timer);
    let launches = 0;
    this.#openScope();
    try {
      for (const command of commands) {
        if (command.kind === "copy") {
          await this.#copy(batch, command);
        } else if (!command.grid.includes(0)) {
          batch.launch(command);
          launches += 1;
          if (launches % BATCH === 0) batch.submit();
        }
      }
      batch.submit();
    } finally {
      this.#closeScope("submit", "submit failed");
    }
    return launches;
  }

  async #copy(batch, copy) {
    const { source, target, nbytes, source_offset: from, target_offset: to } = copy;
    if (nbytes === 0) return;
    if (nbytes % WORD || from % WORD || to % WORD) {
      // WebGPU copies whole words: by way of this side.
      batch.submit();
      await this.write(target, to, await this.read(source, from, nbytes));
    } else if (source === target) {
      // … and none within one buffer.
      const scratch = this.#scratchFor(nbytes);
      batch.copy(source.buffer, from, scratch, 0, nbytes);
      batch.copy(scratch, 0, target.buffer, to, nbytes);
    } else {
      batch.copy(source.buffer, from, target.buffer, to, nbytes);
    }
  }

  #scratchFor(nbytes) {
    if (this.#scratch === null || this.#scratch.size < nbytes) {
      // A smaller one before it may be in a batch that is not handed over: it ends with the last reference.
      const usageBits = GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
      this.#scratch = this.gpu.createBuffer({ size: nbytes, usage: usageBits });
    }
    return this.#scratch;
  }

  async sync() {
    this.#requirePresent();
    await this.gpu.queue.onSubmittedWorkDone().catch((error) => this.#explain("sync failed", error));
    this.#written = 0;
    this.#requirePresent();
  }

  #check(commands) {
    for (const command of commands) {
      if (command.kind !== "launch") continue;
      checkLaunch(command, this.info.limits);
      checkSharing(command);
      command.words = packScalars(command.kernel.name, command.scalars);
    }
  }

  // What is known of it.

  log(clear) {
    const entries = [...this.#log].map(([key, count]) => {
      const [tag, kernel] = JSON.parse(key);
      return { tag, kernel, count };
    });
    if (clear) this.#log.clear();
    return entries;
  }

  stats() {
    return { buffers: this.#buffers, bytes: this.#bytes, modules: this.#modules };
  }

  close() {
    this.#closed = true;
    this.gpu.destroy();
  }

  // Errors.

  /** Waits until all that was handed over has been checked; the first error, as {command, error}, or null. */
  async takeFault() {
    const pending = this.#pending;
    this.#pending = [];
    let first = null;
    for (const outcome of pending) first ??= await outcome;
    return first;
  }

  /** Does something whose errors WebGPU tells later: they become faults of `command`. */
  #scoped(command, what, action, whenFailed) {
    this.#requirePresent();
    this.#openScope();
    try {
      return action();
    } finally {
      this.#closeScope(command, what, whenFailed);
    }
  }

  #openScope() {
    for (const kind of SCOPES) this.gpu.pushErrorScope(kind);
  }

  #closeScope(command, what, whenFailed = () => {}) {
    const found = SCOPES.map(() => this.gpu.popErrorScope());
    this.#pending.push(
      Promise.all(found).then(
        (errors) => {
          const wrong = errors.find((error) => error !== null);
          if (wrong === undefined) return null;
          whenFailed();
          return { command, error: deviceError(`${what}: ${reason(wrong)}`) };
        },
        () => ({ command, error: this.#lossError() }),
      ),
    );
  }

  /** The loss of the device, where that is what an exception means; else the device's error. Always throws. */
  async #explain(what, error) {
    await Promise.race([this.gpu.lost, new Promise((done) => setTimeout(done, 0))]);
    this.#requirePresent();
    const fault = await this.takeFault();
    throw fault?.error ?? deviceError(`${what}: ${shortened(error.message)}`);
  }

  #lossError() {
    return lost(`the browser's device is lost (${this.#lost ?? "no reason given"}); restart() opens it again`);
  }

  #requirePresent() {
    if (this.#lost !== null) throw this.#lossError();
  }
}

function reason(error) {
  const kind = error.constructor.name === "GPUOutOfMemoryError" ? "out of memory: " : "";
  return kind + shortened(error.message);
}

function padded(nbytes) {
  return Math.ceil(nbytes / WORD) * WORD;
}
