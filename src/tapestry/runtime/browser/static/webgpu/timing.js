// The device's own clock: two timestamps around a compute pass. Ticks are nanoseconds, by the specification; a browser
// may round them (Chrome to 0.1 ms unless its developer features are on).

export class Timer {
  constructor(gpu) {
    this.queries = gpu.createQuerySet({ type: "timestamp", count: 2 });
    this.results = gpu.createBuffer({ size: 16, usage: GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC });
    this.staging = gpu.createBuffer({ size: 16, usage: GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ });
    this.writes = { querySet: this.queries, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 };
  }

  resolve(encoder) {
    encoder.resolveQuerySet(this.queries, 0, 2, this.results, 0);
    encoder.copyBufferToBuffer(this.results, 0, this.staging, 0, 16);
  }

  /** Seconds between the two, once the device has come to them; 0 or less where it gives none. */
  async seconds() {
    await this.staging.mapAsync(GPUMapMode.READ);
    const [start, end] = new BigUint64Array(this.staging.getMappedRange());
    const ticks = Number(end - start);
    this.staging.unmap();
    return end > start ? ticks * 1e-9 : 0;
  }
}
