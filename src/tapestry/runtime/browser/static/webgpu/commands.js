// Launches and copies: checked against the device's limits, and put into one command encoder.
// Not here: which buffers and kernels there are (session.js), and handing over (device.js).

import { grouped, unsupported, usage } from "../errors.js";

const AXES = ["x", "y", "z"];

/** Commands in one encoder, launches in as few passes as copies between them allow. */
export class Batch {
  #encoder = null;
  #pass = null;
  #pipeline = null;

  constructor(gpu, groups, timer) {
    this.gpu = gpu;
    this.groups = groups;
    this.timer = timer;
  }

  launch(command) {
    const { kernel, grid } = command;
    if (this.#pass === null) {
      this.#encoder ??= this.gpu.createCommandEncoder();
      this.#pass = this.#encoder.beginComputePass(this.timer === null ? {} : { timestampWrites: this.timer.writes });
      this.#pipeline = null;
    }
    if (this.#pipeline !== kernel.pipeline) {
      this.#pass.setPipeline(kernel.pipeline);
      this.#pipeline = kernel.pipeline;
    }
    this.#pass.setBindGroup(0, this.groups.group(command));
    this.#pass.dispatchWorkgroups(...grid);
  }

  copy(source, from, target, to, nbytes) {
    this.#endPass();
    this.#encoder ??= this.gpu.createCommandEncoder();
    this.#encoder.copyBufferToBuffer(source, from, target, to, nbytes);
  }

  submit() {
    if (this.#encoder === null) return;
    this.#endPass();
    if (this.timer !== null) this.timer.resolve(this.#encoder);
    this.gpu.queue.submit([this.#encoder.finish()]);
    this.#encoder = null;
  }

  #endPass() {
    this.#pass?.end();
    this.#pass = null;
  }
}

/** Refuse a launch that the device cannot take, or that is not the kernel's. */
export function checkLaunch({ kernel, buffers, grid, block }, limits) {
  const { name } = kernel;
  for (const [axis, letter] of AXES.entries()) {
    if (block[axis] < 1) throw usage(`kernel ${name}: expected a block of 1 or more, got block.${letter} = 0`);
    if (grid[axis] > limits.max_grid[axis]) {
      throw unsupported(
        `kernel ${name}: ${grid[axis]} workgroups along ${letter}, over the limit of ${limits.max_grid[axis]}`,
      );
    }
    if (block[axis] > limits.max_block[axis]) {
      throw unsupported(
        `kernel ${name}: ${block[axis]} invocations along ${letter} of a workgroup, over the limit of ` +
          `${limits.max_block[axis]}`,
      );
    }
  }
  const invocations = block[0] * block[1] * block[2];
  if (invocations > limits.max_invocations) {
    throw unsupported(
      `kernel ${name}: ${invocations} invocations in a workgroup, over the limit of ${limits.max_invocations}`,
    );
  }
  if (block.some((size, axis) => size !== kernel.block[axis])) {
    throw usage(`kernel ${name} has workgroups of ${kernel.block} in its source, the launch says ${block}`);
  }
  if (buffers.length > limits.max_bindings) {
    throw unsupported(`kernel ${name}: ${buffers.length} buffers bound, over the limit of ${limits.max_bindings}`);
  }
  for (const { nbytes } of buffers) {
    if (nbytes > limits.max_binding_bytes) {
      throw unsupported(
        `kernel ${name}: a binding of ${grouped(nbytes)} bytes, over the limit of ${grouped(limits.max_binding_bytes)}`,
      );
    }
  }
}
