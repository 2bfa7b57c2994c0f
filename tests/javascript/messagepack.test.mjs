import assert from "node:assert/strict";
import test from "node:test";

import { decode, encode } from "../../src/tapestry/runtime/browser/static/messagepack.js";

const bytes = (...numbers) => Uint8Array.from(numbers);
const plain = (value) => (Object.getPrototypeOf(Object(value)) === null ? { ...value } : value);

// The specification's own formats: value and bytes, both ways.
const BOTH_WAYS = [
  [null, bytes(0xc0)],
  [false, bytes(0xc2)],
  [true, bytes(0xc3)],
  [0, bytes(0x00)],
  [127, bytes(0x7f)],
  [128, bytes(0xcc, 0x80)],
  [255, bytes(0xcc, 0xff)],
  [256, bytes(0xcd, 1, 0)],
  [65535, bytes(0xcd, 0xff, 0xff)],
  [65536, bytes(0xce, 0, 1, 0, 0)],
  [2 ** 32 - 1, bytes(0xce, 0xff, 0xff, 0xff, 0xff)],
  [2 ** 32, bytes(0xcf, 0, 0, 0, 1, 0, 0, 0, 0)],
  [Number.MAX_SAFE_INTEGER, bytes(0xcf, 0, 0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)],
  [-1, bytes(0xff)],
  [-32, bytes(0xe0)],
  [-33, bytes(0xd0, 0xdf)],
  [-128, bytes(0xd0, 0x80)],
  [-129, bytes(0xd1, 0xff, 0x7f)],
  [-32769, bytes(0xd2, 0xff, 0xff, 0x7f, 0xff)],
  [-(2 ** 31) - 1, bytes(0xd3, 0xff, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff)],
  [0.5, bytes(0xcb, 0x3f, 0xe0, 0, 0, 0, 0, 0, 0)],
  [-0, bytes(0xcb, 0x80, 0, 0, 0, 0, 0, 0, 0)],
  [NaN, bytes(0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 0)],
  ["", bytes(0xa0)],
  ["añ", bytes(0xa3, 0x61, 0xc3, 0xb1)],
  ["x".repeat(32), bytes(0xd9, 32, ...Array(32).fill(0x78))],
  [bytes(1, 2), bytes(0xc4, 2, 1, 2)],
  [[], bytes(0x90)],
  [[1, [2]], bytes(0x92, 1, 0x91, 2)],
  [{ a: 1 }, bytes(0x81, 0xa1, 0x61, 1)],
];

for (const [value, encoded] of BOTH_WAYS) {
  test(`${JSON.stringify(value)} is ${encoded.length} bytes, both ways`, () => {
    assert.deepEqual(encode(value), encoded);
    assert.deepEqual(plain(decode(encoded)), value);
  });
}

test("lengths over 255 and 65,535 have wider heads", () => {
  for (const [first, value] of [
    [0xda, "y".repeat(256)],
    [0xdb, "y".repeat(65536)],
    [0xc5, new Uint8Array(256)],
    [0xc6, new Uint8Array(65536)],
    [0xdc, Array(16).fill(3)],
    [0xdd, Array(65536).fill(3)],
  ]) {
    const encoded = encode(value);
    assert.equal(encoded[0], first);
    assert.deepEqual(decode(encoded), value);
  }
  const wide = Object.fromEntries(Array.from({ length: 70000 }, (_, i) => [`k${i}`, i]));
  assert.equal(encode(wide)[0], 0xdf);
  assert.equal(decode(encode(wide)).k69999, 69999);
});

test("a float32 is read", () => {
  assert.equal(decode(bytes(0xca, 0x3f, 0xc0, 0, 0)), 1.5);
});

test("a key named __proto__ is a key like others", () => {
  const found = decode(encode(JSON.parse('{"__proto__": 1}')));
  assert.deepEqual(Object.entries(found), [["__proto__", 1]]);
  assert.equal({}.__proto__ === 1, false);
});

const WRONG = {
  "nothing at all": bytes(),
  "a text cut short": bytes(0xa5, 0x61),
  "an array that claims more than is there": bytes(0xdd, 0xff, 0xff, 0xff, 0xff),
  "a map that claims more than is there": bytes(0xdf, 0x7f, 0xff, 0xff, 0xff, 0xa1, 0x61, 1),
  "bytes left over": bytes(1, 2),
  "an extension": bytes(0xd4, 1, 2),
  "the byte that is never used": bytes(0xc1),
  "a key that is no text": bytes(0x81, 1, 1),
  "text that is not UTF-8": bytes(0xa1, 0xff),
  "an integer beyond what a number holds": bytes(0xcf, 0, 0x20, 0, 0, 0, 0, 0, 1),
  "values nested without end": new Uint8Array(100).fill(0x91),
};

for (const [what, encoded] of Object.entries(WRONG)) {
  test(`${what} is refused`, () => {
    assert.throws(() => decode(encoded), (error) => error instanceof RangeError || error instanceof TypeError);
  });
}

test("every cut of a message is refused, none is read beyond its end", () => {
  const encoded = encode({ op: "launch", args: [1, ["float32", 0.25]], data: bytes(1, 2, 3), tag: "π" });
  for (let length = 0; length < encoded.length; length++) {
    assert.throws(() => decode(encoded.subarray(0, length)));
  }
  assert.deepEqual({ ...decode(encoded) }.tag, "π");
});
