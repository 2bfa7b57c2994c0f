// The requests of the protocol: what each field may hold (docs/protocol.md). Not here: carrying them out.

import { ProtocolError, usage } from "./errors.js";
import { decode } from "./messagepack.js";

const MOST_ARGUMENTS = 1024;
const MOST_REPEATS = 100_000;

const size = (value) => Number.isSafeInteger(value) && value >= 0;
const id = (value) => size(value) && value >= 1;
const text = (most) => (value) => typeof value === "string" && value.length <= most;
const name = text(512);
const digest = (value) => typeof value === "string" && /^[0-9a-f]{64}$/.test(value);
const bool = (value) => typeof value === "boolean";
const repeats = (value) => id(value) && value <= MOST_REPEATS;
const listOf = (check) => (value) => Array.isArray(value) && value.every(check);
const triple = (value) => Array.isArray(value) && value.length === 3 && value.every(size);
const scalar = (value) =>
  Array.isArray(value) && value.length === 2 && name(value[0]) && typeof value[1] === "number";
const args = (value) =>
  Array.isArray(value) && value.length <= MOST_ARGUMENTS && value.every((entry) => id(entry) || scalar(entry));

const COMMANDS = {
  launch: [["module", id], ["kernel", name], ["args", args], ["grid", triple], ["block", triple], ["tag", name, ""]],
  call: [["module", id], ["inputs", listOf(id)], ["outputs", listOf(id)], ["tag", name, ""]],
  copy: [
    ["source", id], ["target", id], ["nbytes", size], ["source_offset", size, 0], ["target_offset", size, 0],
  ],
};

/** A command as an object with its fields, `kind` among them; undefined when it is none. */
function command(value) {
  if (!Array.isArray(value) || typeof value[0] !== "string" || !Object.hasOwn(COMMANDS, value[0])) return undefined;
  const fields = COMMANDS[value[0]];
  const found = { kind: value[0] };
  for (const [place, [field, check, missing]] of fields.entries()) {
    const given = place + 1 < value.length ? value[place + 1] : missing;
    if (given === undefined || !check(given)) return undefined;
    found[field] = given;
  }
  return found;
}

const REQUESTS = {
  hello: [["protocol", size], ["device", name, ""], ["token", text(1024), ""], ["client", name, ""]],
  info: [],
  alloc: [["buffer", id], ["nbytes", size]],
  free: [["buffer", id]],
  write: [["buffer", id], ["offset", size, 0]],
  read: [["buffer", id], ["nbytes", size], ["offset", size, 0]],
  module: [["digest", digest], ["nbytes", size], ["offset", size, 0]],
  load: [["module", id], ["digest", digest]],
  unload: [["module", id]],
  submit: [["commands", Array.isArray]],
  time: [["commands", Array.isArray], ["repeats", repeats]],
  sync: [],
  log: [["clear", bool, false]],
  stats: [],
  ping: [],
  close: [],
};

/** What can be read of any message: its `op` and `id`. ProtocolError when it is no map with a text `op`. */
export function decodeEnvelope(header) {
  let fields;
  try {
    fields = decode(header);
  } catch (error) {
    throw new ProtocolError(`a header is not a message: ${error.message}`);
  }
  if (fields === null || typeof fields !== "object" || Array.isArray(fields) || fields instanceof Uint8Array) {
    throw new ProtocolError("a header is not a message: expected a map");
  }
  if (!name(fields.op)) throw new ProtocolError("a header is not a message: expected a text under op");
  const number = fields.id ?? 0;
  if (!size(number)) throw new ProtocolError("a header is not a message: expected an integer from 0 under id");
  return { op: fields.op, id: number, fields };
}

/** The request in an envelope, its defaults filled in. A usage error names what is wrong. */
export function readRequest({ op, id: number, fields }) {
  if (!Object.hasOwn(REQUESTS, op)) throw usage(`message '${op}' is wrong: there is no such message`);
  const request = { op, id: number };
  for (const [field, check, missing] of REQUESTS[op]) {
    const value = Object.hasOwn(fields, field) ? fields[field] : missing;
    if (value === undefined) throw usage(`message '${op}' is wrong: it lacks ${field}`);
    if (!check(value)) throw usage(`message '${op}' is wrong: ${field} is ${shown(value)}`);
    request[field] = value;
  }
  if (request.commands !== undefined) {
    request.commands = request.commands.map((entry, place) => {
      const found = command(entry);
      if (found === undefined) throw usage(`message '${op}' is wrong: command ${place} is ${shown(entry)}`);
      return found;
    });
  }
  return request;
}

function shown(value) {
  const json = JSON.stringify(value) ?? String(value);
  return json.length <= 120 ? json : `${json.slice(0, 120)}…`;
}
