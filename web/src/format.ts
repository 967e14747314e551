// Quantities as people read them; three digits.

const NS_STEPS: [number, string][] = [
  [1e9, "s"],
  [1e6, "ms"],
  [1e3, "µs"],
];
const BYTE_STEPS: [number, string][] = [
  [2 ** 40, "TiB"],
  [2 ** 30, "GiB"],
  [2 ** 20, "MiB"],
  [2 ** 10, "KiB"],
];

export function ns(value: number | null | undefined): string {
  return value == null ? "" : stepped(value, NS_STEPS, "ns");
}

const LONG_STEPS: [number, string, number, string][] = [
  [86_400, "d", 3600, "h"],
  [3600, "h", 60, "min"],
  [120, "min", 1, "s"],
];

/** How long something lasted: as `ns`, and from two minutes on as clocks say it. */
export function duration(value: number): string {
  const seconds = Math.round(value / 1e9);
  for (const [least, unit, smaller, small] of LONG_STEPS) {
    if (seconds < least) continue;
    const size = unit === "min" ? 60 : least;
    const rest = Math.floor((seconds % size) / smaller);
    return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${small}` : ""}`;
  }
  return ns(value);
}

export function bytes(value: number | null | undefined): string {
  return value == null ? "" : stepped(value, BYTE_STEPS, "B");
}

export function count(value: number | null | undefined): string {
  return value == null ? "" : Math.round(value).toLocaleString("en-US");
}

export function percent(ratio: number | null | undefined): string {
  if (ratio == null) return "";
  const value = 100 * ratio;
  return `${Math.abs(value) < 10 ? value.toFixed(1) : value.toFixed(0)}%`;
}

// Of what is shorter whole seconds say too little.
const TO_THE_MS_NS = 10e9;

/** Local time; to the millisecond where it is of something that lasts less than 10 s. */
export function clock(unixNs: number, ofNs = Infinity): string {
  const time = new Date(Math.floor(unixNs / 1e6 + 0.001)); // a number holds unix ns to 128 ns
  const ms = ofNs < TO_THE_MS_NS ? `.${String(time.getMilliseconds()).padStart(3, "0")}` : "";
  return time.toLocaleTimeString("en-GB") + ms;
}

export function moment(unixNs: number, ofNs = Infinity): string {
  return `${new Date(unixNs / 1e6).toLocaleDateString("sv-SE")} ${clock(unixNs, ofNs)}`;
}

function stepped(value: number, steps: [number, string][], rest: string): string {
  for (const [step, unit] of steps) {
    if (Math.abs(value) >= step) return `${digits(value / step)} ${unit}`;
  }
  return `${value.toFixed(0)} ${rest}`;
}

function digits(value: number): string {
  const size = Math.abs(value);
  return value.toFixed(size < 10 ? 2 : size < 100 ? 1 : 0);
}
