// Runs Perfetto's trace processor (WebAssembly) as a filter: remote procedure calls in on stdin, their answers on stdout.
// usage: node engine.js FOLDER, which holds engine_bundle.js and trace_processor*.wasm. The bundle expects to be a web
// worker: it is given `self`, a request that loads its module at once, and a message port, and does not see node.
"use strict";
const fs = require("fs");
const path = require("path");
const folder = process.argv[2];

class XMLHttpRequest {
    open(_method, url) {
        this.file = path.join(folder, path.basename(url));
    }
    send() {
        const bytes = fs.readFileSync(this.file);
        this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
        this.status = 200;
    }
}

function writeAll(bytes) {
    for (let at = 0; at < bytes.length; ) {
        at += fs.writeSync(1, bytes, at);
    }
}

const self = {location: {href: `file://${folder}/engine_bundle.js`}, importScripts() {}};
const log = {log: console.error, warn: console.error, error: console.error};
const source = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
const names = ["self", "WorkerGlobalScope", "importScripts", "XMLHttpRequest", "console", "process", "require"];
new Function(...names, source)(self, Object, self.importScripts, XMLHttpRequest, log, undefined, undefined);

const port = {postMessage: writeAll};
self.onmessage({data: port});
setTimeout(() => { // the module has started by then
    process.stdin.on("data", (chunk) => port.onmessage({data: new Uint8Array(chunk)}));
    process.stdin.on("end", () => process.exit(0));
}, 0);
