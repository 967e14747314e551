// The frame: where one can go, which time range of time, whether the recording grows.

import { render } from "preact";
import { useEffect, useRef } from "preact/hooks";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { address, type Facts } from "./api";
import { Containers } from "./containers";
import { Fleet } from "./fleet";
import { OneIncident } from "./incident";
import { Incidents, type ViewProps } from "./incidents";
import { type Asked, type Connection, useAnswer, useGrowth } from "./live";
import { Drops, Machine, Operations, Processes } from "./measures";
import { Memory } from "./memory";
import { Nccl } from "./nccl";
import { Overview, lostText, overheadText } from "./overview";
import { link, nodeLink, useRoute, type Route } from "./route";
import { Stacks } from "./stacks";

const VIEWS: [string, string][] = [
  ["", "Overview"],
  ["incidents", "Incidents"],
  ["ops", "Latency"],
  ["processes", "Processes"],
  ["containers", "Containers"],
  ["stacks", "Stacks"],
  ["memory", "Memory"],
  ["nccl", "NCCL"],
  ["machine", "Machine"],
  ["drops", "Drops"],
];
const TIME_RANGES: [string, string][] = [
  ["", "all of it"],
  ["1h", "the last hour"],
  ["15m", "the last 15 minutes"],
  ["5m", "the last 5 minutes"],
  ["1m", "the last minute"],
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
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>To the content</a>
      <header>
        <strong>{route.node === "" ? "ingero" : <NodeName facts={facts.answer} since={since} />}</strong>
        <nav aria-label="Views">
          {VIEWS.map(([name, text]) => (
            <a key={name} href={link(name, "", { since })} aria-current={name === view ? "page" : undefined}>{text}</a>
          ))}
        </nav>
        <TimeRange route={route} view={view} />
        <Writing connection={connection} facts={facts.answer} />
      </header>
      <main id="main" ref={main} tabIndex={-1}><View route={route} view={view} growth={growth} since={since} facts={facts} /></main>
      {facts.answer && view !== "" && <Completeness facts={facts.answer} since={since} />}
    </>
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
        <strong>ingero</strong>
        <TimeRange route={props.route} view="" />
        <Writing connection={connection} />
      </header>
      <main id="main" tabIndex={-1}><Fleet growth={growth} since={props.route.parameters.since ?? ""} /></main>
    </>
  );
}

function NodeName(props: { facts?: Facts; since: string }) {
  const names = [...new Set(props.facts?.sessions.map((one) => one.node))];
  return <><a href={nodeLink("", "", "", { since: props.since })}>All nodes</a> / {names.join(", ")}</>;
}

function TimeRange(props: { route: Route; view: string }) {
  const { route, view } = props;
  const since = route.parameters.since ?? "";
  return (
    <label>
      Show{" "}
      <select
        value={since}
        onChange={(event) => {
          const { since: _, ...others } = route.parameters;
          window.location.hash = link(view, route.item, { ...others, since: event.currentTarget.value });
        }}
      >
        {TIME_RANGES.some(([name]) => name === since) || <option value={since}>the last {since}</option>}
        {TIME_RANGES.map(([name, text]) => <option key={name} value={name}>{text}</option>)}
      </select>
    </label>
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
  if (view === "machine") return <Machine {...common} />;
  if (view === "drops") return <Drops {...common} />;
  return <Overview {...common} facts={props.facts} />;
}

function Writing(props: { connection: Connection; facts?: Facts }) {
  const { connection, facts } = props;
  const text =
    connection === "lost"
      ? "The server does not answer; trying again."
      : facts?.is_live
        ? "The database is being written: this page follows it."
        : facts
          ? "The recording has ended."
          : "";
  const kind = connection === "lost" ? "lost" : facts?.is_live ? "live" : "ended";
  return <p class={`writing ${kind}`} role="status">{text}</p>;
}

// Below every view: how much of the truth it is.
function Completeness(props: { facts: Facts; since: string }) {
  const overhead = overheadText(props.facts);
  return (
    <footer>
      <a href={link("drops", "", { since: props.since })}>Lost while recording: {lostText(props.facts)}</a>
      {overhead && <span>ingero itself: {overhead}</span>}
    </footer>
  );
}

const place = document.getElementById("page");
if (place) render(place.dataset.of === "fleet" ? <FleetFrame /> : <Frame />, place);
