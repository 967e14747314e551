// Where the time of a row went: one bar to see, one column per thread state in files.

import type { Clocks } from "./api";
import { STATE_TEXTS, StackedBar, clockShares } from "./parts";
import type { Column } from "./table";

const STATES = Object.keys(STATE_TEXTS).slice(0, 8);

export function clockColumns<T extends { clocks: Clocks | null }>(label: (row: T) => string): Column<T>[] {
  return STATES.map((name, at) => ({
    key: `${name}_ns`,
    head: "spent",
    value: (row) => row.clocks?.[`${name}_ns`] ?? null,
    show: (row) => row.clocks && <StackedBar shares={clockShares(row.clocks)} label={label(row)} hasLegend={false} />,
    isWide: true,
    isHidden: at > 0,
  }));
}
