// Tables of any rows, each with a filter and its values as a file: what is shown in people's units is stored exactly.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { bytes, count, ns } from "./format";

type Cell = string | number | boolean | null;

export interface Column<T> {
  key: string; // its name in files, with the unit
  head: string;
  value: (row: T) => Cell;
  show?: (row: T) => ComponentChildren; // else the value
  isNumber?: boolean;
  isWide?: boolean;
  isLong?: boolean; // text that may take several lines
  isHidden?: boolean; // only in files
}

type Numbers<T> = { [K in keyof T]-?: T[K] extends number | null ? K : never }[keyof T] & string;
type Texts<T> = { [K in keyof T]-?: T[K] extends string | null ? K : never }[keyof T] & string;

// Columns of a row's own members: exact in files, on the page in people's units.
export function columnsOf<T>() {
  const shown = (key: Numbers<T>, head: string, text: (value: number | null) => string): Column<T> => {
    const value = (row: T) => row[key] as number | null;
    return { key, head, value, show: (row) => text(value(row)), isNumber: true };
  };
  return {
    text: (key: Texts<T>, head: string): Column<T> => ({ key, head, value: (row) => row[key] as string | null }),
    number: (key: Numbers<T>, head: string) => shown(key, head, (value) => String(value ?? "")),
    count: (key: Numbers<T>, head: string) => shown(key, head, count),
    duration: (key: Numbers<T>, head: string) => shown(key, head, ns),
    size: (key: Numbers<T>, head: string) => shown(key, head, bytes),
  };
}

const FILTERED = 8; // rows; fewer are seen at a glance

// The first column names the row; those that hold nothing are only in the files. name: of these. They hold the rows shown.
export function Table<T>(props: { caption: string; name: string; rows: T[]; columns: Column<T>[] }) {
  const { caption, name, columns } = props;
  const [wanted, setWanted] = useState("");
  const rows = wanted ? props.rows.filter((row) => hasText(row, columns, wanted.toLowerCase())) : props.rows;
  const seen = columns.filter((one, place) => !one.isHidden && (place === 0 || rows.some((row) => (one.value(row) ?? "") !== "")));
  return (
    <div class="table">
      {props.rows.length >= FILTERED && (
        <p class="filtering">
          <input class="filter" type="search" value={wanted} placeholder="Filter (/)" aria-label={`${caption}: filter`} onInput={(event) => setWanted(event.currentTarget.value)} />{" "}
          <span role="status">{wanted && `${count(rows.length)} of ${count(props.rows.length)}`}</span>
        </p>
      )}
      <div class="scroll" tabIndex={0} role="region" aria-label={caption}>
        <table>
          <caption>{caption}</caption>
          <thead>
            <tr>{seen.map((one) => <th key={one.key} scope="col" class={kind(one)}>{one.head}</th>)}</tr>
          </thead>
          <tbody>
            {rows.map((row, at) => (
              <tr key={at}>
                {seen.map((one, place) => {
                  const shown = one.show ? one.show(row) : String(one.value(row) ?? "");
                  return place === 0
                    ? <th key={one.key} scope="row" class={kind(one)}>{shown}</th>
                    : <td key={one.key} class={kind(one)}>{shown}</td>;
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="files">
        <button type="button" aria-label={`${caption}: as CSV`} onClick={() => save(`${name}.csv`, "text/csv", csv(rows, columns))}>CSV</button>{" "}
        <button type="button" aria-label={`${caption}: as JSON`} onClick={() => save(`${name}.json`, "application/json", json(rows, columns))}>JSON</button>
      </p>
    </div>
  );
}

function hasText<T>(row: T, columns: Column<T>[], text: string): boolean {
  return columns.some((one) => !one.isNumber && String(one.value(row) ?? "").toLowerCase().includes(text));
}

function kind<T>(column: Column<T>): string | undefined {
  return column.isNumber ? "number" : column.isWide ? "wide" : column.isLong ? "long" : undefined;
}

function csv<T>(rows: T[], columns: Column<T>[]): string {
  const lines = [columns.map((one) => one.key), ...rows.map((row) => columns.map((one) => one.value(row)))];
  return lines.map((line) => line.map(field).join(",") + "\n").join("");
}

// Traced programs choose their names: in a spreadsheet, none may be a formula (OWASP, "CSV Injection").
const FORMULA = /^[=+\-@\t\r]/;

function field(value: Cell): string {
  const text = value === null ? "" : typeof value === "string" && FORMULA.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function json<T>(rows: T[], columns: Column<T>[]): string {
  return JSON.stringify(rows.map((row) => Object.fromEntries(columns.map((one) => [one.key, one.value(row)]))), null, 1);
}

function save(name: string, type: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `ingero-${name}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
