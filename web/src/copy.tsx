// A command with a button that copies it.

import { useState } from "preact/hooks";

const SHOWN_MS = 2000;

export function Command(props: { text: string }) {
  const [said, setSaid] = useState("");
  const copy = () => {
    const say = (words: string) => {
      setSaid(words);
      setTimeout(() => setSaid(""), SHOWN_MS);
    };
    // Only pages of this host or with TLS may write to the clipboard.
    if (navigator.clipboard) navigator.clipboard.writeText(props.text).then(() => say("Copied"), () => say("Select it and press Ctrl+C"));
    else say("Select it and press Ctrl+C");
  };
  return (
    <div class="command">
      <pre tabIndex={0}><code>{props.text}</code></pre>
      <button type="button" onClick={copy} aria-label={`Copy: ${props.text}`}>Copy</button>
      <span role="status">{said}</span>
    </div>
  );
}
