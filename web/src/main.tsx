// The frame: where one can go, which stretch of time, whether the recording grows.

import { render } from "preact";
import { useEffect, useRef } from "preact/hooks";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { address, type State } from "./api";
import { Incidents, OneIncident, type ViewProps } from "./incidents";
import { type Connection, useAnswer, useGrowth } from "./live";
import { Losses, Machine, Operations, Processes } from "./measures";
import { Overview } from "./overview";
import { link, useRoute, type Route } from "./route";

const VIEWS: [string, string][] = [
  ["", "Overview"],
  ["incidents", "Incidents"],
  ["ops", "Latency"],
  ["processes", "Processes"],
  ["machine", "Machine"],
  ["losses", "Losses"],
];
const STRETCHES: [string, string][] = [
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
        <strong>ingero</strong>
        <nav aria-label="Views">
          {VIEWS.map(([name, text]) => (
            <a key={name} href={link(name, "", { since })} aria-current={name === view ? "page" : undefined}>{text}</a>
          ))}
        </nav>
        <label>
          Show{" "}
          <select
            value={since}
            onChange={(event) => {
              const { since: _, ...others } = route.parameters;
              window.location.hash = link(view, route.item, { ...others, since: event.currentTarget.value });
            }}
          >
            {STRETCHES.some(([name]) => name === since) || <option value={since}>the last {since}</option>}
            {STRETCHES.map(([name, text]) => <option key={name} value={name}>{text}</option>)}
          </select>
        </label>
        <Writing connection={connection} growth={growth} />
      </header>
      <main id="main" ref={main} tabIndex={-1}><View route={route} view={view} growth={growth} since={since} /></main>
    </>
  );
}

function View(props: ViewProps & { route: Route; view: string }) {
  const { route, view, growth, since } = props;
  const common = { growth, since };
  if (view === "incidents") return route.item ? <OneIncident {...common} number={route.item} /> : <Incidents {...common} />;
  if (view === "ops") return <Operations {...common} process={route.parameters.process ?? ""} />;
  if (view === "processes") return <Processes {...common} item={route.item} />;
  if (view === "machine") return <Machine {...common} />;
  if (view === "losses") return <Losses {...common} />;
  return <Overview {...common} />;
}

function Writing(props: { connection: Connection; growth: number }) {
  const { answer } = useAnswer<State>(address("graph-metrics", {}), props.growth);
  const text =
    props.connection === "lost"
      ? "The server does not answer; trying again."
      : answer?.is_live
        ? "The database is being written: this page follows it."
        : answer
          ? "The recording has ended."
          : "";
  const kind = props.connection === "lost" ? "lost" : answer?.is_live ? "live" : "ended";
  return <p class={`writing ${kind}`} role="status">{text}</p>;
}

const place = document.getElementById("page");
if (place) render(<Frame />, place);
