import assert from "node:assert/strict";
import test from "node:test";

import { browser } from "../../src/tapestry/runtime/browser/static/webgpu/adapter.js";
import {
  blockOf, checkSharing, checkWorkgroupMemory, packScalars, shortened,
} from "../../src/tapestry/runtime/browser/static/webgpu/kernels.js";
import { sized } from "../../src/tapestry/runtime/browser/static/view.js";

for (const [source, want] of [
  ["@compute @workgroup_size(64) fn k() {}", [64, 1, 1]],
  ["@workgroup_size(3, 2u)\n@compute\nfn k(", [3, 2, 1]],
  ["@compute @workgroup_size( 4,5,6, ) fn k(", [4, 5, 6]],
  ["@compute @workgroup_size(1) fn other() {} @compute @workgroup_size(2) fn k() {}", [2, 1, 1]],
]) {
  test(`the block of ${source}`, () => assert.deepEqual(blockOf(source, "k"), want));
}

test("a kernel that is not there, or whose size is no number, is a device error", () => {
  assert.throws(() => blockOf("@compute @workgroup_size(1) fn kk() {}", "k"), /no kernel 'k'/);
  assert.throws(() => blockOf("@compute @workgroup_size(w) fn k() {}", "k"), /expected numbers/);
});

test("workgroup memory is counted by WGSL's layout", () => {
  const source = "var<workgroup> a: array<f32, 4>; var<workgroup> b : array<vec3<f32>, 2>; var<workgroup> c: vec2f;";
  checkWorkgroupMemory(source, "k", 16 + 32 + 8);
  assert.throws(() => checkWorkgroupMemory(source, "k", 55), { kind: "unsupported", message: /56 bytes.*limit of 55/ });
  assert.throws(() => checkWorkgroupMemory("var<workgroup> a: Thing;", "k", 100), /got Thing/);
});

test("scalars are their 32 bits", () => {
  const scalars = [["float32", 1.5], ["float32", -0], ["float32", Infinity], ["int32", -1], ["uint32", 4294967295]];
  assert.deepEqual(packScalars("k", scalars), [0x3fc00000, 0x80000000, 0x7f800000, 0xffffffff, 0xffffffff]);
  assert.deepEqual(packScalars("k", [["float32", 3.4028235677973366e38 * (1 - 2 ** -25)]]), [0x7f7fffff]);
  for (const [scalar, kind] of [
    [["int32", 2 ** 31], "usage"],
    [["int32", -(2 ** 31) - 1], "usage"],
    [["uint32", -1], "usage"],
    [["int32", 1.5], "usage"],
    [["float32", 1e39], "usage"],
    [["int64", 1], "unsupported"],
    [["toString", 1], "unsupported"],
  ]) {
    assert.throws(() => packScalars("k", [scalar]), { kind });
  }
});

test("a buffer that is written is bound once", () => {
  const [a, b] = [{}, {}];
  const launch = (access, ...buffers) => checkSharing({ kernel: { name: "k", access }, buffers });
  launch("rrw", a, a, b);
  assert.throws(() => launch("rw", a, a), { kind: "unsupported" });
  assert.throws(() => launch("xr", a, a), { kind: "unsupported" });
});

test("long messages lose their middle", () => {
  assert.equal(shortened(" a\n\n\nb "), "a\nb");
  const long = shortened(`start${"x".repeat(9000)}end`);
  assert.match(long, /^start[^]*5008 characters left out[^]*end$/);
});

test("browsers are named", () => {
  assert.equal(browser("Mozilla/5.0 (X11) AppleWebKit/537.36 Chrome/156.0.0.0 Safari/537.36"), "Chrome 156.0.0.0");
  assert.equal(browser("Mozilla/5.0 Chrome/156.0.0.0 Safari/537.36 Edg/156.0"), "Edge 156.0");
  assert.equal(browser("Mozilla/5.0 (Mac) Version/26.0 Safari/605.1"), "Safari 26.0");
  assert.equal(browser("Mozilla/5.0 Gecko/20100101 Firefox/150.0"), "Firefox 150.0");
  assert.equal(browser("curl/8"), "curl/8");
});

test("bytes for people", () => {
  assert.deepEqual([0, 1023, 1024, 128 << 20, 1.5 * 2 ** 30].map(sized), [
    "0 bytes", "1023 bytes", "1.0 KiB", "128.0 MiB", "1.5 GiB",
  ]);
});
