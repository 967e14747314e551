// Where the reader is: in the address after #, so that links and reloads lead back. `#/ops?since=5m`, `#/node/7/ops`

import { useEffect, useState } from "preact/hooks";

export interface Route {
  node: string; // its number on a page of many nodes; "" on all of them, and where there is one
  view: string;
  item: string;
  parameters: Record<string, string>;
}

const NODE = "node";

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
  return nodeLink(currentNode(), view, item, parameters);
}

export function nodeLink(node: string | number, view: string, item: string | number, parameters: Record<string, string>): string {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== ""));
  const parts = [...(node === "" ? [] : [NODE, node]), view, ...(item === "" ? [] : [item])];
  return `#/${parts.join("/")}${query.size ? `?${query}` : ""}`;
}

export function currentNode(): string {
  return parsed(window.location.hash).node;
}

function parsed(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/");
  const node = parts[0] === NODE && /^\d+$/.test(parts[1] ?? "") ? parts[1] ?? "" : "";
  const [view = "", item = ""] = node === "" ? parts : parts.slice(2);
  return { node, view, item, parameters: Object.fromEntries(new URLSearchParams(query)) };
}
