// What each cause means, what proves it and what it cannot say: the text of docs/detections.md, from the server.

import { useEffect, useRef } from "preact/hooks";
import type { Detection } from "./api";
import { address } from "./api";
import { causeTitle } from "./causes";
import type { ViewProps } from "./incidents";
import { Answered, useAnswer } from "./live";
import { link } from "./route";

const NO_CAUSE = "unexplained"; // what is said where no cause is proven

// A title for people; its slug small, as commands and SQL have it, with what is behind it.
export function CauseName(props: { cause: string; since: string }) {
  const slug = <small class="slug">{props.cause}</small>;
  return (
    <span class="cause">
      <b>{causeTitle(props.cause)}</b>{" "}
      {props.cause === NO_CAUSE ? slug : <a href={link("detections", props.cause, { since: props.since })} title={`What ${props.cause} means`}>{slug}</a>}
    </span>
  );
}

export function Detections(props: ViewProps & { item: string }) {
  const asked = useAnswer<{ detections: Detection[] }>(address("detections", { begin_ns: "", end_ns: "" }), 0);
  return (
    <>
      <h2>Detections</h2>
      <p>Every cause that ingero can prove. A cause whose data was not recorded is listed as not checked: its absence proves nothing.</p>
      <Answered asked={asked}>{(found) => <All detections={found.detections} item={props.item} />}</Answered>
    </>
  );
}

function All(props: { detections: Detection[]; item: string }) {
  const chosen = useRef<HTMLElement>(null);
  useEffect(() => chosen.current?.scrollIntoView({ block: "start" }), [props.item]);
  const causes = [...new Set(props.detections.map((one) => one.cause))];
  return (
    <>
      {causes.map((cause) => (
        <section key={cause} ref={cause === props.item ? chosen : undefined} class={`detection ${cause === props.item ? "chosen" : ""}`} aria-labelledby={`cause-${cause}`}>
          <h3 id={`cause-${cause}`}>{causeTitle(cause)} <small class="slug">{cause}</small></h3>
          {props.detections.filter((one) => one.cause === cause).map((one) => (
            <div key={one.title}>
              <p>{one.title}</p>
              <dl class="pairs">
                <div><dt>Evidence</dt><dd>{one.evidence}</dd></div>
                <div><dt>Limits</dt><dd>{one.limits}</dd></div>
                <div><dt>Requires</dt><dd>{one.needs.join(", ") || "nothing in particular"}</dd></div>
              </dl>
            </div>
          ))}
        </section>
      ))}
    </>
  );
}
