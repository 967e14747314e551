// The frames of one stack.

import type { Stack } from "./api";

export function FrameList(props: Pick<Stack, "frames" | "note">) {
  return (
    <>
      <ol class="frames">
        {props.frames.map((one, at) => (
          <li key={at} class={one.is_own ? "own" : undefined}>
            <small>{one.kind}</small> <code>{one.function}</code>{" "}
            {one.file && <span class="quiet">{one.line ? `${one.file}:${one.line}` : one.file}</span>}
          </li>
        ))}
      </ol>
      {props.note && <p class="quiet">{props.note}</p>}
    </>
  );
}
