// Answers that are asked again when the recording grows, and what is shown meanwhile.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get } from "./api";

export type Connection = "connecting" | "connected" | "lost";

// A number that grows with the recording.
export function useGrowth(): [number, Connection] {
  const [growth, setGrowth] = useState(0);
  const [connection, setConnection] = useState<Connection>("connecting");
  useEffect(() => {
    const events = new EventSource("/api/v1/events");
    let wasLost = false;
    events.addEventListener("connected", () => {
      setConnection("connected");
      if (wasLost) setGrowth((known) => known + 1);
      wasLost = false;
    });
    events.addEventListener("changed", () => setGrowth((known) => known + 1));
    events.onerror = () => {
      wasLost = true;
      setConnection("lost");
    };
    return () => events.close();
  }, []);
  return [growth, connection];
}

export interface Asked<T> {
  url: string;
  answer?: T;
  error?: ApiError;
}

// One question at a time; when the recording has grown meanwhile, it is asked once more.
export function useAnswer<T>(url: string, growth: number): Asked<T> {
  const [asked, setAsked] = useState<Asked<T>>({ url });
  const wanted = useRef({ url, growth });
  wanted.current = { url, growth };
  const running = useRef<AbortController | null>(null);
  const ask = () => {
    const now = wanted.current;
    const stop = new AbortController();
    running.current = stop;
    get<T>(now.url, stop.signal)
      .then((answer) => stop.signal.aborted || setAsked({ url: now.url, answer }))
      .catch((error: unknown) => {
        if (stop.signal.aborted || !(error instanceof ApiError)) return;
        setAsked((known) => ({ ...(known.url === now.url ? known : { url: now.url }), error }));
      })
      .finally(() => {
        if (stop.signal.aborted) return;
        running.current = null;
        if (wanted.current.growth !== now.growth) ask();
      });
  };
  useEffect(() => () => {
    running.current?.abort();
    running.current = null;
  }, [url]);
  useEffect(() => {
    if (!running.current) ask();
  }, [url, growth]);
  return asked.url === url ? asked : { url };
}

export function Answered<T>(props: { asked: Asked<T>; waiting?: string; children: (answer: T) => ComponentChildren }) {
  const { answer, error } = props.asked;
  return (
    <>
      {error && <Failure error={error} isOld={answer !== undefined} />}
      {answer !== undefined ? props.children(answer) : !error && <p class="quiet" role="status">{props.waiting ?? "Reading the recording ..."}</p>}
    </>
  );
}

function Failure(props: { error: ApiError; isOld: boolean }) {
  const isEmpty = props.error.code === "empty_recording" || props.error.code === "no_database";
  const isNotice = isEmpty || props.error.code === "not_recorded";
  return (
    <div class={isNotice ? "notice" : "notice error"} role="alert">
      <strong>{isEmpty ? "Nothing is recorded yet." : props.error.message}</strong>
      {isEmpty && <p>{props.error.message}</p>}
      {props.error.hint && <p><code>{props.error.hint}</code></p>}
      {props.isOld && <p>Shown below is the last answer.</p>}
    </div>
  );
}
