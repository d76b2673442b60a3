// node trace_processor.js FOLDER < requests > replies
//
// Perfetto's trace processor is WebAssembly that expects to be a web worker. This gives it what it asks for there:
// a port for messages, and its own files.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];

class FileRequest {
  open(_method, url) {
    this.url = url;
  }
  send() {
    const data = fs.readFileSync(path.join(folder, path.basename(this.url)));
    this.status = 200;
    this.response = data.buffer.slice(data.byteOffset, data.byteOffset + data.length);
  }
}

const quiet = { log() {}, warn() {}, error: console.error };
const worker = {
  console: quiet, TextDecoder, TextEncoder, performance, setTimeout,
  XMLHttpRequest: FileRequest, WorkerGlobalScope: class {}, importScripts() {}, location: { href: `file://${folder}/` },
};
worker.self = worker;
vm.createContext(worker);
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), worker);

// The module starts in a microtask; after it the port may be used.
setTimeout(() => {
  const port = { postMessage: (reply) => fs.writeSync(1, Buffer.from(reply)) };
  worker.onmessage({ data: port });
  worker.requests = fs.readFileSync(0);
  port.onmessage({ data: vm.runInContext("new Uint8Array(requests)", worker) });
}, 0);
