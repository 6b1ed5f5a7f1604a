// Runs Perfetto's trace processor, as its web page has it, in Node: bytes of its RPC protocol
// come in on standard input, and its answers leave on standard output.
//
//     node trace_processor.js FOLDER
//
// FOLDER holds engine_bundle.js and trace_processor*.wasm. The bundle is written for a web worker, so
// what it uses of one is made here.
const fs = require('fs');
const path = require('path');
const vm = require('vm');

const folder = process.argv[2];
const file = (url) => fs.readFileSync(path.join(folder, path.basename(String(url))));

globalThis.self = globalThis;
globalThis.location = {href: 'http://localhost/engine_bundle.js'};
globalThis.WorkerGlobalScope = function () {};
globalThis.importScripts = () => {};
globalThis.XMLHttpRequest = class {
  open(method, url) { this.url = url; }
  send() { this.response = new Uint8Array(file(this.url)).buffer; }
};
// So the bundle takes the way of the browser, which is the only one that it was built for.
process.type = 'renderer';
console.log = console.error;

vm.runInThisContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'));

const {port1, port2} = new MessageChannel();
globalThis.onmessage({data: port1});
port2.onmessage = (event) => fs.writeSync(1, event.data);
// After what the bundle does at its start has been done.
setTimeout(() => {
  process.stdin.on('data', (bytes) => port2.postMessage(new Uint8Array(bytes)));
  process.stdin.on('end', () => process.exit(0));
}, 100);
