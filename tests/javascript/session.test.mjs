import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import test from "node:test";

import { deviceError, lost } from "../../src/tapestry/runtime/browser/static/errors.js";
import { LIMITS, joinFrame, parseFrame } from "../../src/tapestry/runtime/browser/static/framing.js";
import { decode, encode } from "../../src/tapestry/runtime/browser/static/messagepack.js";
import { Session } from "../../src/tapestry/runtime/browser/static/session.js";
import { ModuleStore } from "../../src/tapestry/runtime/browser/static/store.js";

const DIGEST = "0".repeat(64);

/** A device of plain memory whose checks come late, as WebGPU's do: `failNext` is found by the next takeFault. */
class FakeDevice {
  constructor() {
    this.info = { kind: "webgpu", name: "fake", limits: {} };
    this.fault = null;
    this.closed = false;
    this.ran = [];
  }
  alloc(nbytes) {
    if (nbytes > 1000) throw deviceError("out of memory");
    return { nbytes, data: new Uint8Array(nbytes), failed: false };
  }
  free(memory) {
    memory.freed = true;
  }
  async write(memory, offset, data) {
    memory.data.set(data, offset);
  }
  async read(memory, offset, nbytes) {
    return memory.data.slice(offset, offset + nbytes);
  }
  async load(module) {
    return { kernels: new Map(module.kernels.map((kernel) => [kernel.name, kernel])) };
  }
  unload() {}
  async submit(commands) {
    this.ran.push(...commands);
  }
  async time(commands, repeats) {
    return Array(repeats).fill(0.5);
  }
  async sync() {
    if (this.lost) throw lost("gone");
  }
  log() {
    return [{ tag: "a", kernel: "k", count: 1 }];
  }
  stats() {
    return { buffers: 0, bytes: 0, modules: 0 };
  }
  async takeFault() {
    const { fault } = this;
    this.fault = null;
    return fault;
  }
  close() {
    this.closed = true;
  }
}

class Client {
  constructor() {
    this.device = new FakeDevice();
    this.session = new Session(async () => this.device, new ModuleStore());
  }

  async raw(bytes) {
    const answer = await this.session.handle(bytes);
    if (answer === null) return null;
    const { header, payload } = parseFrame(answer.buffer, LIMITS);
    return { ...decode(header), payload };
  }

  send(message, payload) {
    return this.raw(joinFrame(encode(message), payload).buffer);
  }

  async greeted() {
    const answer = await this.send({ op: "hello", id: 1, protocol: 1, device: "browser" });
    assert.equal(answer.op, "reply");
    return this;
  }

  async loaded(module) {
    const encoded = encode(module);
    const digest = createHash("sha256").update(encoded).digest("hex");
    await this.send({ op: "module", digest, nbytes: encoded.length }, encoded);
    return this.send({ op: "load", id: 9, module: 7, digest });
  }
}

const KERNELS = { type: "kernels", language: "wgsl", source: "", kernels: [{ name: "k", access: "rw" }], options: "" };
const greeted = () => new Client().greeted();

test("the handshake gives what the device is and what is accepted", async () => {
  const client = new Client();
  const { result } = await client.send({ op: "hello", id: 1, protocol: 1, device: "browser", unknown: [1] });
  assert.equal(result.protocol, 1);
  assert.equal(result.info.name, "fake");
  assert.equal(result.limits.payload_bytes, 8 << 20);
  assert.deepEqual(result.modules, []);
});

for (const [what, message, pattern] of [
  ["another message", { op: "ping", id: 1 }, /first message/],
  ["a hello without id", { op: "hello", protocol: 1 }, /first message/],
  ["another version", { op: "hello", id: 1, protocol: 2 }, /protocol 1, the client 2/],
  ["a wrong field", { op: "hello", id: 1, protocol: "1" }, /protocol is "1"/],
]) {
  test(`${what} at first ends the connection`, async () => {
    const client = new Client();
    const answer = await client.send(message);
    assert.deepEqual([answer.op, answer.kind, answer.fatal], ["error", "usage", true]);
    assert.match(answer.message, pattern);
    assert.equal(client.session.finished, true);
  });
}

test("before the handshake a frame over 4,096 bytes of header is refused unread", async () => {
  const answer = await new Client().send({ op: "hello", id: 1, protocol: 1, client: "x".repeat(5000) });
  assert.equal(answer.fatal, true);
  assert.match(answer.message, /at most|expected 1 to 4096/);
});

for (const [what, bytes] of [
  ["no MessagePack", joinFrame(Uint8Array.from([0xc1])).buffer],
  ["no map", joinFrame(encode([1])).buffer],
  ["no op", joinFrame(encode({ id: 1 })).buffer],
  ["text", "hello"],
  ["a frame cut short", joinFrame(encode({ op: "ping", id: 1 })).slice(0, -1).buffer],
]) {
  test(`${what} ends the connection`, async () => {
    const client = await greeted();
    const answer = await client.raw(bytes);
    assert.deepEqual([answer.op, answer.id, answer.fatal], ["error", 0, true]);
    assert.equal(client.session.finished, true);
  });
}

for (const [what, message, pattern] of [
  ["an unknown message", { op: "dance", id: 2 }, /no such message/],
  ["a field that is missing", { op: "alloc", id: 2, buffer: 1 }, /lacks nbytes/],
  ["an id of 0", { op: "alloc", id: 2, buffer: 0, nbytes: 1 }, /buffer is 0/],
  ["a size that is no integer", { op: "alloc", id: 2, buffer: 1, nbytes: 1.5 }, /nbytes is 1.5/],
  ["a buffer that is not there", { op: "read", id: 2, buffer: 5, nbytes: 1 }, /no buffer 5/],
  ["an unknown command", { op: "submit", id: 2, commands: [["jump", 1]] }, /command 0/],
  ["a launch with too little", { op: "submit", id: 2, commands: [["launch", 1, "k", []]] }, /command 0/],
  ["a second hello", { op: "hello", id: 2, protocol: 1 }, /once/],
  ["a field of the prototype", { op: "constructor", id: 2 }, /no such message/],
]) {
  test(`${what} is the error of that message alone`, async () => {
    const client = await greeted();
    const answer = await client.send(message);
    assert.deepEqual([answer.op, answer.id, answer.kind, answer.fatal], ["error", 2, "usage", false]);
    assert.match(answer.message, pattern);
    assert.equal((await client.send({ op: "ping", id: 3 })).op, "reply");
  });
}

test("a payload where none belongs is an error", async () => {
  const client = await greeted();
  const answer = await client.send({ op: "ping", id: 2 }, Uint8Array.from([1]));
  assert.match(answer.message, /no payload/);
});

test("bytes come back as they went", async () => {
  const client = await greeted();
  assert.equal(await client.send({ op: "alloc", buffer: 1, nbytes: 4 }), null);
  assert.equal(await client.send({ op: "write", buffer: 1, offset: 1 }, Uint8Array.from([7, 8])), null);
  const answer = await client.send({ op: "read", id: 2, buffer: 1, nbytes: 3, offset: 1 });
  assert.deepEqual([...answer.payload], [7, 8, 0]);
  const beyond = await client.send({ op: "read", id: 3, buffer: 1, nbytes: 4, offset: 1 });
  assert.match(beyond.message, /outside buffer 1/);
});

test("the first error of pipelined messages is kept, told once, and stops what depends on it", async () => {
  const client = await greeted();
  await client.send({ op: "alloc", buffer: 1, nbytes: 4 });
  await client.send({ op: "alloc", buffer: 2, nbytes: 5000 });
  await client.send({ op: "write", buffer: 2 }, Uint8Array.from([1])); // its own error is not the first
  await client.send({ op: "write", buffer: 1 }, Uint8Array.from([1])); // dropped
  assert.equal((await client.send({ op: "ping", id: 2 })).op, "reply");
  const told = await client.send({ op: "read", id: 3, buffer: 1, nbytes: 1 });
  assert.deepEqual([told.kind, told.command, told.message], ["device", "alloc", "out of memory"]);
  const read = await client.send({ op: "read", id: 4, buffer: 1, nbytes: 1 });
  assert.deepEqual([...read.payload], [0]);
  assert.match((await client.send({ op: "read", id: 5, buffer: 2, nbytes: 1 })).message, /no buffer 2/);
  assert.equal((await client.send({ op: "free", id: 6, buffer: 2 })).op, "reply"); // a void one may be freed
});

test("an error that the device finds late is told by the next message that waits", async () => {
  const client = await greeted();
  client.device.fault = { command: "submit", error: deviceError("late") };
  const answer = await client.send({ op: "sync", id: 2 });
  assert.deepEqual([answer.kind, answer.command, answer.message], ["device", "submit", "late"]);
  assert.equal((await client.send({ op: "sync", id: 3 })).op, "reply");
});

test("a message with an id is answered with its own late error", async () => {
  const client = await greeted();
  client.device.fault = { command: "alloc", error: deviceError("late") };
  assert.equal((await client.send({ op: "alloc", id: 2, buffer: 1, nbytes: 1 })).message, "late");
  client.device.fault = { command: "submit", error: deviceError("of an earlier one") };
  assert.equal((await client.send({ op: "alloc", id: 3, buffer: 2, nbytes: 1 })).op, "reply");
  assert.equal((await client.send({ op: "sync", id: 4 })).message, "of an earlier one");
});

test("a lost device is told as lost", async () => {
  const client = await greeted();
  client.device.lost = true;
  assert.equal((await client.send({ op: "sync", id: 2 })).kind, "lost");
});

test("modules come in parts and are checked", async () => {
  const client = await greeted();
  const encoded = encode(KERNELS);
  const digest = createHash("sha256").update(encoded).digest("hex");
  assert.equal((await client.send({ op: "load", id: 2, module: 1, digest })).kind, "missing");
  const nbytes = encoded.length;
  await client.send({ op: "module", digest, nbytes }, encoded.subarray(0, 10));
  await client.send({ op: "module", digest, nbytes, offset: 10 }, encoded.subarray(10));
  assert.equal((await client.send({ op: "load", id: 3, module: 1, digest })).op, "reply");
  assert.match((await client.send({ op: "load", id: 4, module: 1, digest })).message, /exists already/);
  const gap = await client.send({ op: "module", id: 5, digest, nbytes, offset: 5 }, encoded.subarray(5));
  assert.match(gap.message, /does not fit/);
  const other = await client.send({ op: "module", id: 6, digest: DIGEST, nbytes }, encoded);
  assert.match(other.message, /declared as 0000/);
  const vast = await client.send({ op: "module", id: 7, digest: DIGEST, nbytes: 2 ** 40 }, encoded);
  assert.match(vast.message, /limit/);
});

for (const [what, module, kind] of [
  ["an artifact", { type: "artifact", loader: "a:b", payload: new Uint8Array(1), native: true }, "unsupported"],
  ["a kernel without a name", { ...KERNELS, kernels: [{ access: "r" }] }, "usage"],
  ["nothing that is a module", [1, 2], "usage"],
]) {
  test(`${what} is refused`, async () => {
    const client = await greeted();
    assert.equal((await client.loaded(module)).kind, kind);
  });
}

test("commands name what exists", async () => {
  const client = await greeted();
  await client.loaded(KERNELS);
  await client.send({ op: "alloc", buffer: 1, nbytes: 8 });
  await client.send({ op: "alloc", buffer: 2, nbytes: 8 });
  const submit = (...commands) => client.send({ op: "submit", id: 2, commands });
  const one = [1, 1, 1];
  assert.equal((await submit(["launch", 7, "k", [1, 2, ["int32", 5]], one, one, "tag"])).op, "reply");
  const [ran] = client.device.ran;
  assert.deepEqual([ran.kernel.name, ran.scalars, ran.tag], ["k", [["int32", 5]], "tag"]);
  for (const [command, pattern] of [
    [["launch", 8, "k", [1, 2], one, one], /no module 8/],
    [["launch", 7, "other", [1, 2], one, one], /no kernel 'other'/],
    [["launch", 7, "k", [1], one, one], /takes 2 buffers, got 1/],
    [["launch", 7, "k", [1, 3], one, one], /no buffer 3/],
    [["call", 7, [1], [2]], /holds kernels/],
    [["copy", 1, 2, 9], /outside buffer 1/],
    [["copy", 1, 1, 5, 0, 3], /overlaps/],
  ]) {
    assert.match((await submit(command)).message, pattern);
  }
  assert.equal(client.device.ran.length, 1);
});

test("time, log and stats have results", async () => {
  const client = await greeted();
  assert.deepEqual((await client.send({ op: "time", id: 2, commands: [], repeats: 2 })).result.seconds, [0.5, 0.5]);
  assert.match((await client.send({ op: "time", id: 3, commands: [], repeats: 0 })).message, /repeats is 0/);
  assert.equal((await client.send({ op: "log", id: 4 })).result.entries[0].count, 1);
  assert.equal((await client.send({ op: "stats", id: 5 })).result.buffers, 0);
});

test("close is answered and closes the device", async () => {
  const client = await greeted();
  assert.equal((await client.send({ op: "close", id: 2 })).op, "reply");
  assert.deepEqual([client.session.finished, client.device.closed], [true, true]);
});

test("a device that cannot be opened ends the connection with its kind", async () => {
  const client = new Client();
  client.session.openDevice = async () => {
    throw lost("no such luck");
  };
  const answer = await client.send({ op: "hello", id: 1, protocol: 1 });
  assert.deepEqual([answer.kind, answer.fatal], ["lost", true]);
});
