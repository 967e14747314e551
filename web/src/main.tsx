// The frame: where one can go, which recording and time is shown, whether it grows.

import { render } from "preact";
import { useEffect, useRef } from "preact/hooks";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { address, type Facts } from "./api";
import { Containers } from "./containers";
import { Detections } from "./detections";
import { Fleet } from "./fleet";
import { OneIncident } from "./incident";
import { Incidents, type ViewProps } from "./incidents";
import { type Asked, type Connection, useAnswer, useGrowth } from "./live";
import { Drops, Host, Operations, Processes } from "./measures";
import { Memory } from "./memory";
import { Nccl } from "./nccl";
import { Overview, RecordingLine, lostText, overheadText } from "./overview";
import { currentNode, link, nodeLink, selectTime, timeOf, useRoute, type Route } from "./route";
import { Stacks } from "./stacks";

// Views in groups, in the order in which a question is followed.
const GROUPS: [string, [string, string][]][] = [
  ["Overview", [["", "Overview"]]],
  ["Incidents", [["incidents", "Incidents"]]],
  ["Calls", [["ops", "Latency"], ["stacks", "Stacks"], ["nccl", "NCCL"]]],
  ["Processes", [["processes", "Processes"], ["containers", "Containers"]]],
  ["Memory", [["memory", "GPU memory"]]],
  ["Host", [["host", "Host"]]],
  ["Recording", [["drops", "Dropped data"], ["detections", "Detections"]]],
];
const VIEWS = GROUPS.flatMap(([, views]) => views);
const TIMES: [string, string][] = [
  ["", "entire recording"],
  ["1h", "last hour"],
  ["15m", "last 15 minutes"],
  ["5m", "last 5 minutes"],
  ["1m", "last minute"],
];

function Frame() {
  const route = useRoute();
  const [growth, connection] = useGrowth();
  const since = route.parameters.since ?? "";
  const facts = useAnswer<Facts>(address("facts", { since }), growth);
  const view = VIEWS.some(([name]) => name === route.view) ? route.view : "";
  const main = useRef<HTMLElement>(null);
  const title = VIEWS.find(([name]) => name === view)?.[1];
  useEffect(() => {
    document.title = `ingero: ${title}`;
    window.scrollTo(0, 0);
  }, [view, route.item]);
  useFilterKey();
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>Skip to content</a>
      <header>
        <div class="bar">
          <strong>{route.node === "" ? "ingero" : <NodeName facts={facts.answer} since={since} />}</strong>
          <RecordingLine facts={facts.answer} route={route} />
          <Writing connection={connection} facts={facts.answer} />
        </div>
        <div class="bar">
          <Tabs view={view} since={since} />
          <TimeChoice route={route} view={view} />
        </div>
      </header>
      <main id="main" ref={main} tabIndex={-1}><View route={route} view={view} growth={growth} since={since} facts={facts} /></main>
      {facts.answer && <Completeness facts={facts.answer} since={since} />}
    </>
  );
}

// `/` leads to the first filter of the view, as in many tools.
function useFilterKey() {
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      const isTyping = event.target instanceof HTMLElement && /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
      const filter = document.querySelector<HTMLInputElement>("input.filter");
      if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey || !filter) return;
      event.preventDefault();
      filter.focus();
      filter.select();
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  }, []);
}

function Tabs(props: { view: string; since: string }) {
  const { view, since } = props;
  const [group = "", views = []] = GROUPS.find(([, those]) => those.some(([name]) => name === view)) ?? [];
  return (
    <div class="tabs">
      <nav aria-label="Views">
        {GROUPS.map(([text, those]) => (
          <a key={text} href={link(those[0]?.[0] ?? "", "", { since })} aria-current={text === group ? (views.length > 1 ? "true" : "page") : undefined}>{text}</a>
        ))}
      </nav>
      {views.length > 1 && (
        <nav aria-label={group} class="within">
          {views.map(([name, text]) => <a key={name} href={link(name, "", { since })} aria-current={name === view ? "page" : undefined}>{text}</a>)}
        </nav>
      )}
    </div>
  );
}

// All nodes; the views of one are the same as of a recording.
function FleetFrame() {
  const route = useRoute();
  return route.node === "" ? <AllNodes route={route} /> : <Frame key={route.node} />;
}

function AllNodes(props: { route: Route }) {
  const [growth, connection] = useGrowth();
  useEffect(() => {
    document.title = "ingero: nodes";
  }, []);
  return (
    <>
      <header>
        <div class="bar">
          <strong>ingero</strong>
          <TimeChoice route={props.route} view="" />
          <Writing connection={connection} />
        </div>
      </header>
      <main id="main" tabIndex={-1}><Fleet growth={growth} since={props.route.parameters.since ?? ""} /></main>
    </>
  );
}

function NodeName(props: { facts?: Facts; since: string }) {
  const names = [...new Set(props.facts?.sessions.map((one) => one.node))];
  return <><a href={nodeLink("", "", "", { since: props.since })}>All nodes</a> / {names.join(", ")}</>;
}

function TimeChoice(props: { route: Route; view: string }) {
  const { route, view } = props;
  const since = route.parameters.since ?? "";
  return (
    <div class="times-shown">
      {Object.keys(timeOf(route)).length > 0 && <button type="button" onClick={() => selectTime(route, null)}>Clear time selection</button>}
      <label>
        Show{" "}
        <select
          value={since}
          onChange={(event) => {
            const { since: _, ...others } = route.parameters;
            window.location.hash = link(view, route.item, { ...others, begin_ns: "", end_ns: "", since: event.currentTarget.value });
          }}
        >
          {TIMES.some(([name]) => name === since) || <option value={since}>last {since}</option>}
          {TIMES.map(([name, text]) => <option key={name} value={name}>{text}</option>)}
        </select>
      </label>
    </div>
  );
}

function View(props: ViewProps & { route: Route; view: string; facts: Asked<Facts> }) {
  const { route, view, growth, since } = props;
  const common = { growth, since };
  if (view === "incidents") return route.item ? <OneIncident {...common} number={route.item} /> : <Incidents {...common} />;
  if (view === "ops") return <Operations {...common} process={route.parameters.process ?? ""} />;
  if (view === "processes") return <Processes {...common} item={route.item} />;
  if (view === "containers") return <Containers {...common} />;
  if (view === "stacks") return <Stacks {...common} item={route.item} parameters={route.parameters} facts={props.facts} />;
  if (view === "memory") return <Memory {...common} />;
  if (view === "nccl") return <Nccl {...common} />;
  if (view === "host") return <Host {...common} />;
  if (view === "drops") return <Drops {...common} />;
  if (view === "detections") return <Detections {...common} item={route.item} />;
  return <Overview {...common} facts={props.facts} route={route} />;
}

function Writing(props: { connection: Connection; facts?: Facts }) {
  const { connection, facts } = props;
  const text =
    connection === "lost"
      ? "The server does not answer; retrying."
      : facts?.is_live
        ? "Recording: this page follows it."
        : facts
          ? "The recording has ended."
          : "";
  const kind = connection === "lost" ? "lost" : facts?.is_live ? "live" : "ended";
  return <p class={`writing ${kind}`} role="status">{text}</p>;
}

// Below every view: how complete it is, and what to take away.
function Completeness(props: { facts: Facts; since: string }) {
  const overhead = overheadText(props.facts);
  return (
    <footer>
      <a href={link("drops", "", { since: props.since })}>Dropped while recording: {lostText(props.facts)}</a>
      {overhead && <span>ingero itself: {overhead}</span>}
      {currentNode() === "" && <a href={address("perfetto", { since: props.since })} download="ingero.pftrace" title="A file for ui.perfetto.dev, or a viewer of your own">Open in Perfetto (download)</a>}
      {currentNode() === "" && <a href={address("report", { since: props.since })} download="ingero-report.html" title="One file with this report, to attach to a ticket">Export HTML (download)</a>}
    </footer>
  );
}

const place = document.getElementById("page");
if (place) render(place.dataset.of === "fleet" ? <FleetFrame /> : <Frame />, place);
