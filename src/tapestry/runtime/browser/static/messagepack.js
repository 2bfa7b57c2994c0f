// MessagePack as far as the protocol uses it: null, booleans, numbers, text, binary, arrays, maps with text keys.
// https://github.com/msgpack/msgpack/blob/master/spec.md. Not here: extensions (timestamps included), which are refused.

const MOST_DEPTH = 32;
const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/**
 * One value from all of `bytes`. Maps become objects without a prototype, binary a Uint8Array of the same memory.
 * Integers must be safe ones. Throws RangeError for anything else, and for bytes that are missing or left over.
 */
export function decode(bytes) {
  const reader = new Reader(bytes);
  const value = reader.value(0);
  if (reader.place !== bytes.length) {
    throw new RangeError(`${bytes.length - reader.place} bytes are left over after the value`);
  }
  return value;
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.place = 0;
  }

  value(depth) {
    if (depth > MOST_DEPTH) throw new RangeError(`values are nested deeper than ${MOST_DEPTH}`);
    const first = this.number("getUint8", 1);
    if (first < 0x80) return first;
    if (first < 0x90) return this.map(first & 0x0f, depth);
    if (first < 0xa0) return this.array(first & 0x0f, depth);
    if (first < 0xc0) return this.text(first & 0x1f);
    if (first >= 0xe0) return first - 0x100;
    const read = BY_FIRST[first];
    if (read === undefined) throw new RangeError(`a value begins with 0x${first.toString(16)}, which is not used here`);
    return read(this, depth);
  }

  take(count) {
    if (count > this.bytes.length - this.place) {
      throw new RangeError(`${count} bytes are expected, ${this.bytes.length - this.place} are left`);
    }
    const start = this.place;
    this.place += count;
    return start;
  }

  number(method, size) {
    return this.view[method](this.take(size));
  }

  wide(method) {
    const value = Number(this.view[method](this.take(8)));
    if (!Number.isSafeInteger(value)) throw new RangeError(`${value} is not an integer that is held exactly`);
    return value;
  }

  text(length) {
    const start = this.take(length);
    return decoder.decode(this.bytes.subarray(start, start + length));
  }

  binary(length) {
    const start = this.take(length);
    return this.bytes.subarray(start, start + length);
  }

  array(length, depth) {
    this.room(length);
    const values = [];
    for (let i = 0; i < length; i++) values.push(this.value(depth + 1));
    return values;
  }

  map(length, depth) {
    this.room(2 * length);
    const values = Object.create(null);
    for (let i = 0; i < length; i++) {
      const key = this.value(depth + 1);
      if (typeof key !== "string") throw new RangeError(`a key of a map is ${typeof key}, expected text`);
      values[key] = this.value(depth + 1);
    }
    return values;
  }

  // Every element has a byte at least: a length that lies costs nothing.
  room(count) {
    if (count > this.bytes.length - this.place) throw new RangeError(`${count} values do not fit what is left`);
  }
}

const BY_FIRST = {
  0xc0: () => null,
  0xc2: () => false,
  0xc3: () => true,
  0xc4: (r) => r.binary(r.number("getUint8", 1)),
  0xc5: (r) => r.binary(r.number("getUint16", 2)),
  0xc6: (r) => r.binary(r.number("getUint32", 4)),
  0xca: (r) => r.number("getFloat32", 4),
  0xcb: (r) => r.number("getFloat64", 8),
  0xcc: (r) => r.number("getUint8", 1),
  0xcd: (r) => r.number("getUint16", 2),
  0xce: (r) => r.number("getUint32", 4),
  0xcf: (r) => r.wide("getBigUint64"),
  0xd0: (r) => r.number("getInt8", 1),
  0xd1: (r) => r.number("getInt16", 2),
  0xd2: (r) => r.number("getInt32", 4),
  0xd3: (r) => r.wide("getBigInt64"),
  0xd9: (r) => r.text(r.number("getUint8", 1)),
  0xda: (r) => r.text(r.number("getUint16", 2)),
  0xdb: (r) => r.text(r.number("getUint32", 4)),
  0xdc: (r, depth) => r.array(r.number("getUint16", 2), depth),
  0xdd: (r, depth) => r.array(r.number("getUint32", 4), depth),
  0xde: (r, depth) => r.map(r.number("getUint16", 2), depth),
  0xdf: (r, depth) => r.map(r.number("getUint32", 4), depth),
};

/** The bytes of a value. Safe integers (not -0) are written as integers, every other number as a float64. */
export function encode(value) {
  const writer = new Writer();
  writer.value(value);
  return writer.bytes.slice(0, writer.place);
}

class Writer {
  constructor() {
    this.bytes = new Uint8Array(256);
    this.view = new DataView(this.bytes.buffer);
    this.place = 0;
  }

  value(value) {
    if (value === null || value === undefined) this.byte(0xc0);
    else if (typeof value === "boolean") this.byte(value ? 0xc3 : 0xc2);
    else if (typeof value === "number") this.number(value);
    else if (typeof value === "string") this.text(value);
    else if (value instanceof Uint8Array) this.binary(value);
    else if (Array.isArray(value)) this.array(value);
    else if (typeof value === "object") this.map(value);
    else throw new TypeError(`a ${typeof value} cannot be written`);
  }

  /** Room for `count` bytes more; where they begin. */
  grow(count) {
    const start = this.place;
    this.place += count;
    if (this.place > this.bytes.length) {
      const larger = new Uint8Array(Math.max(this.place, 2 * this.bytes.length));
      larger.set(this.bytes);
      this.bytes = larger;
      this.view = new DataView(larger.buffer);
    }
    return start;
  }

  byte(value) {
    const at = this.grow(1);
    this.view.setUint8(at, value);
  }

  headed(first, method, size, value) {
    const at = this.grow(1 + size);
    this.view.setUint8(at, first);
    this.view[method](at + 1, value);
  }

  number(value) {
    if (!Number.isSafeInteger(value) || Object.is(value, -0)) this.headed(0xcb, "setFloat64", 8, value);
    else if (value >= 0) this.unsigned(value);
    else this.negative(value);
  }

  unsigned(value) {
    if (value < 0x80) this.byte(value);
    else if (value < 0x100) this.headed(0xcc, "setUint8", 1, value);
    else if (value < 0x10000) this.headed(0xcd, "setUint16", 2, value);
    else if (value < 0x100000000) this.headed(0xce, "setUint32", 4, value);
    else this.headed(0xcf, "setBigUint64", 8, BigInt(value));
  }

  negative(value) {
    if (value >= -0x20) this.byte(0x100 + value);
    else if (value >= -0x80) this.headed(0xd0, "setInt8", 1, value);
    else if (value >= -0x8000) this.headed(0xd1, "setInt16", 2, value);
    else if (value >= -0x80000000) this.headed(0xd2, "setInt32", 4, value);
    else this.headed(0xd3, "setBigInt64", 8, BigInt(value));
  }

  text(value) {
    const bytes = encoder.encode(value);
    this.length(bytes.length, [0xa0, 0x20], [0xd9, 0xda, 0xdb]);
    this.raw(bytes);
  }

  binary(bytes) {
    this.length(bytes.length, null, [0xc4, 0xc5, 0xc6]);
    this.raw(bytes);
  }

  array(values) {
    this.length(values.length, [0x90, 0x10], [null, 0xdc, 0xdd]);
    for (const value of values) this.value(value);
  }

  map(values) {
    const entries = Object.entries(values);
    this.length(entries.length, [0x80, 0x10], [null, 0xde, 0xdf]);
    for (const [key, value] of entries) {
      this.text(key);
      this.value(value);
    }
  }

  length(count, fixed, [one, two, four]) {
    if (fixed !== null && count < fixed[1]) this.byte(fixed[0] | count);
    else if (one !== null && count < 0x100) this.headed(one, "setUint8", 1, count);
    else if (count < 0x10000) this.headed(two, "setUint16", 2, count);
    else this.headed(four, "setUint32", 4, count);
  }

  raw(bytes) {
    const at = this.grow(bytes.length);
    this.bytes.set(bytes, at);
  }
}
