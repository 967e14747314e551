// Where the reader is: in the address after #, so that links and reloads lead back. `#/ops?since=5m`

import { useEffect, useState } from "preact/hooks";

export interface Route {
  view: string;
  item: string;
  parameters: Record<string, string>;
}

export function useRoute(): Route {
  const [hash, setHash] = useState(window.location.hash);
  useEffect(() => {
    const changed = () => setHash(window.location.hash);
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return parsed(hash);
}

export function link(view: string, item: string | number, parameters: Record<string, string>): string {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== ""));
  return `#/${view}${item === "" ? "" : `/${item}`}${query.size ? `?${query}` : ""}`;
}

function parsed(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [view = "", item = ""] = path.split("/", 2);
  return { view, item, parameters: Object.fromEntries(new URLSearchParams(query)) };
}
