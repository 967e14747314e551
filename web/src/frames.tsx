// The frames of one stack.

import type { Stack } from "./api";

// waitingThread: PID/TID of the thread whose the frames are that wait for these calls.
export function FrameList(props: Pick<Stack, "frames" | "note"> & { waitingThread?: string }) {
  return (
    <>
      <ol class="frames">
        {props.frames.map((one, at) => (
          <li key={at} class={one.is_own ? "own" : undefined}>
            <small>{one.kind === "waiting" ? waitingText(props.waitingThread) : one.kind}</small> <code>{one.function}</code>{" "}
            {one.file && <span class="quiet">{one.line ? `${one.file}:${one.line}` : one.file}</span>}
          </li>
        ))}
      </ol>
      {props.note && <p class="quiet">{props.note}</p>}
    </>
  );
}

export function waitingText(thread: string | undefined): string {
  return `Python of the waiting thread${thread ? `: ${thread}` : ""}`;
}
