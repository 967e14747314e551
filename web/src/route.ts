// Where the reader is: in the address after #, so that links and reloads lead back. `#/ops?since=5m`, `#/node/7/ops`

import { useEffect, useState } from "preact/hooks";

export interface Route {
  node: string; // its number on a page of many nodes; "" on all of them, and where there is one
  view: string;
  item: string;
  parameters: Record<string, string>;
}

const NODE = "node";
// The selected part of the time, in unix ns: every link and every question keeps it.
const TIME = ["begin_ns", "end_ns"];

export function useRoute(): Route {
  const [hash, setHash] = useState(window.location.hash);
  useEffect(() => {
    const changed = () => setHash(window.location.hash);
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return parsed(hash);
}

// Of the node whose views are shown; else of the only recording.
export function link(view: string, item: string | number, parameters: Record<string, string>): string {
  return nodeLink(currentNode(), view, item, { ...currentTime(), ...parameters });
}

export function nodeLink(node: string | number, view: string, item: string | number, parameters: Record<string, string>): string {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== ""));
  const parts = [...(node === "" ? [] : [NODE, node]), view, ...(item === "" ? [] : [item])];
  return `#/${parts.join("/")}${query.size ? `?${query}` : ""}`;
}

export function currentNode(): string {
  return parsed(window.location.hash).node;
}

export function currentTime(): Record<string, string> {
  return timeOf(parsed(window.location.hash));
}

export function timeOf(route: Route): Record<string, string> {
  return Object.fromEntries(Object.entries(route.parameters).filter(([name, value]) => TIME.includes(name) && /^\d+$/.test(value)));
}

// The same place for another time; without one, for all of it.
export function selectTime(route: Route, time: { begin_ns: string; end_ns: string } | null): void {
  const others = Object.fromEntries(Object.entries(route.parameters).filter(([name]) => !TIME.includes(name)));
  window.location.hash = nodeLink(route.node, route.view, route.item, { ...others, ...time });
}

function parsed(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/");
  const node = parts[0] === NODE && /^\d+$/.test(parts[1] ?? "") ? parts[1] ?? "" : "";
  const [view = "", item = ""] = node === "" ? parts : parts.slice(2);
  return { node, view, item, parameters: Object.fromEntries(new URLSearchParams(query)) };
}
