// The browser's WebGPU adapter: what it is and can take, and a device of it with all its limits asked for.

import { TapestryError, deviceError, unsupported } from "../errors.js";
import { sha256 } from "../store.js";
import { loopLimit } from "./probe.js";

/** Asked for as the adapter has them; without that a device has the specification's smallest. */
export const LIMITS = [
  "maxBufferSize",
  "maxStorageBufferBindingSize",
  "maxStorageBuffersPerShaderStage",
  "maxBindingsPerBindGroup",
  "maxComputeInvocationsPerWorkgroup",
  "maxComputeWorkgroupSizeX",
  "maxComputeWorkgroupSizeY",
  "maxComputeWorkgroupSizeZ",
  "maxComputeWorkgroupStorageSize",
  "maxComputeWorkgroupsPerDimension",
];
export const FEATURES = { "shader-f16": "fp16", "timestamp-query": "timestamps" };
/** What a kernel may store and be passed: WGSL has 32-bit types, and float16 only in an extension. */
const DTYPES = ["float32", "int32", "uint32"];

/** The browser's adapter. An environment error says what is missing. */
export async function findAdapter() {
  if (!navigator.gpu) {
    throw new TapestryError(
      "environment",
      globalThis.isSecureContext
        ? "this browser has no WebGPU: use a current Chrome, Edge, Safari or Firefox"
        : "WebGPU needs a secure origin: open the page as http://localhost (on a phone: adb reverse)",
    );
  }
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (adapter === null) {
    throw new TapestryError(
      "environment",
      "this browser has WebGPU but no adapter for it, see chrome://gpu; Chromium on a machine without a GPU needs " +
        "--enable-unsafe-webgpu",
    );
  }
  return adapter;
}

/** An adapter and a device of it. An adapter gives one device, so a fresh one is asked for. */
export async function request() {
  const adapter = await findAdapter();
  const requiredLimits = Object.fromEntries(LIMITS.map((key) => [key, adapter.limits[key]]));
  const requiredFeatures = Object.keys(FEATURES).filter((feature) => adapter.features.has(feature));
  try {
    const gpu = await adapter.requestDevice({ requiredLimits, requiredFeatures });
    return { adapter, gpu };
  } catch (error) {
    throw deviceError(`the adapter gives no device: ${error.message}`);
  }
}

/** The adapter in a few words, for people. */
export function describe({ info }) {
  const words = [info.vendor, info.architecture, info.device, info.description];
  return words.filter((word, place) => word && words.indexOf(word) === place).join(" ") || "unnamed adapter";
}

/** The protocol's `info` of the device. */
export async function information(name, adapter, gpu) {
  const { info } = adapter;
  const features = Object.keys(FEATURES).filter((feature) => gpu.features.has(feature)).map((key) => FEATURES[key]);
  if (info.isFallbackAdapter || /swiftshader|llvmpipe|basic render/i.test(describe(adapter))) features.push("software");
  const identity = [info.vendor, info.architecture, info.device, info.description, navigator.userAgent, ...features];
  const { limits } = gpu;
  const across = limits.maxComputeWorkgroupsPerDimension;
  return {
    kind: "webgpu",
    name,
    description: `${describe(adapter)} (WebGPU in ${browser(navigator.userAgent)})`,
    fingerprint: await sha256(new TextEncoder().encode(identity.join("\n"))),
    limits: {
      max_buffer_bytes: Math.floor(limits.maxBufferSize / 4) * 4,
      max_binding_bytes: limits.maxStorageBufferBindingSize,
      // One more stands for the scalars; it is a uniform buffer, which has a limit of its own.
      max_bindings: Math.min(limits.maxStorageBuffersPerShaderStage, limits.maxBindingsPerBindGroup - 1),
      max_grid: [across, across, across],
      max_block: [limits.maxComputeWorkgroupSizeX, limits.maxComputeWorkgroupSizeY, limits.maxComputeWorkgroupSizeZ],
      max_invocations: limits.maxComputeInvocationsPerWorkgroup,
      workgroup_memory_bytes: limits.maxComputeWorkgroupStorageSize,
      memory_bytes: 0,
      max_loop_iterations: await loopLimit(gpu),
    },
    dtypes: DTYPES,
    features,
  };
}

/** A browser's name and version out of its user agent; the whole text when it is an unknown one. */
export function browser(agent) {
  const known = [/Firefox\/[\d.]+/, /Edg\/[\d.]+/, /(?:Headless)?Chrome\/[\d.]+/, /Version\/[\d.]+(?=.*Safari)/];
  for (const pattern of known) {
    const found = agent.match(pattern);
    if (found) return found[0].replace("/", " ").replace("Version", "Safari").replace("Edg ", "Edge ");
  }
  return agent;
}

/** Refuse what only another kind of device could run. */
export function requireWgsl(module) {
  if (module.language !== "wgsl") throw unsupported(`a browser compiles 'wgsl' sources, got '${module.language}'`);
}
