// What an adapter does wrong without a word, found out by a small kernel before anything depends on it: Mesa's
// llvmpipe and lavapipe leave every loop once an invocation has gone round 65,535 times in all of a kernel's loops.

/** Rounds that the kernel is to make. An adapter that makes them all is taken to have no limit. */
const ROUNDS = 1 << 17;

const SOURCE = `
@group(0) @binding(0) var<storage, read_write> count : array<u32>;
@compute @workgroup_size(1)
fn rounds() {
  var made = 0u;
  for (var i = 0u; i < ${ROUNDS}u; i++) { made += 1u + (count[1] & i); }
  count[0] = made;
}`;

/** Loop iterations that an invocation may make in one kernel, or 0 for no limit met. */
export async function loopLimit(gpu) {
  const buffer = gpu.createBuffer({ size: 16, usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC });
  const staging = gpu.createBuffer({ size: 16, usage: GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ });
  const module = gpu.createShaderModule({ code: SOURCE });
  const pipeline = await gpu.createComputePipelineAsync({ layout: "auto", compute: { module, entryPoint: "rounds" } });
  const group = gpu.createBindGroup({
    layout: pipeline.getBindGroupLayout(0),
    entries: [{ binding: 0, resource: { buffer } }],
  });
  const encoder = gpu.createCommandEncoder();
  const pass = encoder.beginComputePass();
  pass.setPipeline(pipeline);
  pass.setBindGroup(0, group);
  pass.dispatchWorkgroups(1);
  pass.end();
  encoder.copyBufferToBuffer(buffer, 0, staging, 0, 16);
  gpu.queue.submit([encoder.finish()]);
  await staging.mapAsync(GPUMapMode.READ);
  const made = new Uint32Array(staging.getMappedRange())[0];
  staging.destroy();
  buffer.destroy();
  return made >= ROUNDS ? 0 : made;
}
