// WGSL sources to compute pipelines, and the bind groups of their launches.
//
// A kernel's storage buffers are bindings 0, 1, … of group 0 in the order of the launch's buffers, read-only where the
// declaration says "r"; its scalars, four bytes each in their order, are one uniform struct at the next binding.
// Not here: encoding and submitting.

import { deviceError, grouped, unsupported, usage } from "../errors.js";
import { requireWgsl } from "./adapter.js";

/** A uniform struct's size is a multiple of this, in bytes. */
const UNIFORM_STEP = 16;
/** Uniform buffers kept; the launches of one model have few different scalars. */
const MOST_UNIFORMS = 4096;

/**
 * The program of a module: {kernels: name → {name, access, block, pipeline, layout, groups}}.
 * A device error has the compiler's words, unsupported is more workgroup memory than there is.
 */
export async function build(gpu, module, limits) {
  requireWgsl(module);
  const shaders = new Map();
  const shaderOf = (source) => {
    if (!shaders.has(source)) shaders.set(source, compileShader(gpu, source));
    return shaders.get(source);
  };
  if (!module.kernels.length) {
    // Nothing to launch, but an error in the source is still told.
    await shaderOf(module.source);
    return { kernels: new Map() };
  }
  const made = module.kernels.map((kernel) => {
    const source = kernel.source || module.source;
    const block = blockOf(source, kernel.name);
    checkWorkgroupMemory(source, kernel.name, limits.workgroup_memory_bytes);
    return { kernel, block, source };
  });
  const built = await Promise.allSettled(
    made.map(async ({ kernel, block, source }) => pipelineOf(gpu, kernel, block, await shaderOf(source))),
  );
  const failed = built.find(({ status }) => status === "rejected");
  if (failed !== undefined) throw failed.reason;
  return { kernels: new Map(built.map(({ value }) => [value.name, value])) };
}

async function compileShader(gpu, code) {
  gpu.pushErrorScope("validation");
  const shader = gpu.createShaderModule({ code });
  const [wrong, { messages }] = await Promise.all([gpu.popErrorScope(), shader.getCompilationInfo()]);
  const errors = messages.filter(({ type }) => type === "error");
  if (errors.length || wrong !== null) {
    const lines = errors.map(({ lineNum, linePos, message }) => `${lineNum}:${linePos} ${message}`);
    throw deviceError(`the source does not build: ${shortened(lines.join("\n") || wrong.message)}`);
  }
  return shader;
}

async function pipelineOf(gpu, { name, access }, block, module) {
  const kinds = [...access].map((letter) => (letter === "r" ? "read-only-storage" : "storage"));
  // A kernel without scalars leaves the last binding unused, which is allowed.
  const entries = [...kinds, "uniform"].map((type, binding) => ({
    binding,
    visibility: GPUShaderStage.COMPUTE,
    buffer: { type },
  }));
  gpu.pushErrorScope("validation");
  const layout = gpu.createBindGroupLayout({ entries });
  const made = gpu.createComputePipelineAsync({
    layout: gpu.createPipelineLayout({ bindGroupLayouts: [layout] }),
    compute: { module, entryPoint: name },
  });
  const scope = gpu.popErrorScope();
  try {
    const pipeline = await made;
    const wrong = await scope;
    if (wrong !== null) throw wrong;
    return { name, access, block, pipeline, layout, groups: new Map() };
  } catch (error) {
    throw deviceError(`kernel ${name} does not build: ${shortened(error.message)}`);
  }
}

/** The workgroup size that the source states, which launches must name too. */
export function blockOf(source, name) {
  const escaped = name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const found = source.match(
    new RegExp(`@workgroup_size\\s*\\(([^)]*)\\)\\s*(?:@\\w+(?:\\([^)]*\\))?\\s*)*fn\\s+${escaped}\\b`),
  );
  if (found === null) {
    throw deviceError(`the source has no kernel '${name}': expected @compute @workgroup_size(…) fn ${name}`);
  }
  const sizes = found[1].split(",").map((part) => part.trim().replace(/[ui]+$/, "")).filter((part) => part);
  if (sizes.length < 1 || sizes.length > 3 || !sizes.every((size) => /^\d+$/.test(size))) {
    throw deviceError(`kernel ${name}: expected numbers in @workgroup_size, got '${found[1].trim()}'`);
  }
  return [...sizes.map(Number), 1, 1].slice(0, 3);
}

const WORD_TYPES = new Set(["f32", "i32", "u32", "atomic<i32>", "atomic<u32>", "bool"]);

/** Told here, since not every adapter refuses it. */
export function checkWorkgroupMemory(source, name, most) {
  let needed = 0;
  for (const [, type] of source.matchAll(/var<workgroup>\s+\w+\s*:\s*([^;]+);/g)) needed += bytesOf(type.trim(), name);
  if (needed > most) {
    throw unsupported(
      `kernel ${name} needs ${grouped(needed)} bytes of workgroup memory, over the limit of ${grouped(most)}`,
    );
  }
}

/** The size of a WGSL type, as the specification lays it out. */
function bytesOf(type, name) {
  if (WORD_TYPES.has(type)) return 4;
  const vector = type.match(/^vec([234])(?:<\w+>|[fiuh])$/);
  if (vector) return 4 * (vector[1] === "3" ? 4 : Number(vector[1]));
  const array = type.match(/^array<(.+),\s*(\d+)[ui]?\s*>$/);
  if (array) return bytesOf(array[1].trim(), name) * Number(array[2]);
  throw deviceError(
    `kernel ${name}: expected numbers, vectors or arrays of known size in workgroup memory, got ${type}`,
  );
}

/** Makes and keeps bind groups, and the small uniform buffers that hold launches' scalars. */
export class BindGroups {
  #uniforms = new Map();

  constructor(gpu) {
    this.gpu = gpu;
  }

  /** The bind group of a checked launch. Kept by the buffers' numbers and the scalars' bits. */
  group({ kernel, buffers, words }) {
    const key = `${buffers.map(({ number }) => number).join()}|${words.join()}`;
    let known = kernel.groups.get(key);
    if (known === undefined) {
      const uniform = this.#uniform(words);
      const resources = [...buffers.map(({ buffer }) => buffer), uniform];
      known = this.gpu.createBindGroup({
        layout: kernel.layout,
        entries: resources.map((buffer, binding) => ({ binding, resource: { buffer } })),
      });
      kernel.groups.set(key, known);
      for (const memory of new Set(buffers)) memory.uses.push([kernel.groups, key]);
    }
    return known;
  }

  #uniform(words) {
    const key = words.join();
    let known = this.#uniforms.get(key);
    if (known === undefined) {
      if (this.#uniforms.size >= MOST_UNIFORMS) this.#uniforms.clear(); // bind groups hold those that are in use
      const size = Math.max(1, Math.ceil((4 * words.length) / UNIFORM_STEP)) * UNIFORM_STEP;
      known = this.gpu.createBuffer({ size, usage: GPUBufferUsage.UNIFORM, mappedAtCreation: true });
      new Uint32Array(known.getMappedRange()).set(words);
      known.unmap();
      this.#uniforms.set(key, known);
    }
    return known;
  }
}

/** Drop the bind groups that hold a buffer that is to be freed. */
export function forgetGroups(memory) {
  for (const [groups, key] of memory.uses) groups.delete(key);
  memory.uses.length = 0;
}

/** WebGPU allows no buffer that is written to be bound twice. */
export function checkSharing({ kernel, buffers }) {
  const count = new Map();
  for (const memory of buffers) count.set(memory, (count.get(memory) ?? 0) + 1);
  for (const [place, memory] of buffers.entries()) {
    if (kernel.access[place] !== "r" && count.get(memory) > 1) {
      throw unsupported(`kernel ${kernel.name} writes a buffer that is bound twice: WebGPU has no such launch`);
    }
  }
}

const view = new DataView(new ArrayBuffer(4));
const RANGES = { int32: [-(2 ** 31), 2 ** 31 - 1], uint32: [0, 2 ** 32 - 1] };

/** The 32 bits of each scalar `[dtype, value]`, as unsigned integers. */
export function packScalars(kernel, scalars) {
  return scalars.map(([dtype, value]) => {
    if (dtype === "float32") return floatBits(kernel, value);
    if (!Object.hasOwn(RANGES, dtype)) throw unsupported(`kernel ${kernel}: WebGPU passes no scalar of type ${dtype}`);
    if (!Number.isInteger(value)) throw usage(`kernel ${kernel}: expected an integer for ${dtype}, got ${value}`);
    const [least, most] = RANGES[dtype];
    if (value < least || value > most) throw usage(`kernel ${kernel}: ${value} does not fit ${dtype}`);
    return value >>> 0;
  });
}

function floatBits(kernel, value) {
  if (Number.isFinite(value) && !Number.isFinite(Math.fround(value))) {
    throw usage(`kernel ${kernel}: ${value} does not fit float32`);
  }
  view.setFloat32(0, value);
  return view.getUint32(0);
}

/** Characters kept from each end of a compiler's message. */
const ENDS = 2000;

/** A message without its middle when it is long. */
export function shortened(text) {
  const tidy = text.replace(/\n\s*\n+/g, "\n").trim();
  if (tidy.length <= 2 * ENDS) return tidy;
  return `${tidy.slice(0, ENDS)}\n… ${tidy.length - 2 * ENDS} characters left out …\n${tidy.slice(-ENDS)}`;
}
