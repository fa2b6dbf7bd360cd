// Lists and watches, all over one WebSocket; parses, counts, and passes changes on, merged by key.
//
// A feed is one list and its watch: it resumes after its last event, and lists again only after 410.
import { mask, slim } from './slim.js';

const PASS_EVERY = 33;          // milliseconds between two batches for the page
const RETRY_MIN = 300, RETRY_MAX = 5000;
const NAMES_MAX = 40;

const feeds = new Map();        // by the page's number
const byStream = new Map();     // by the number on the stream
let socket = null, open = false, streamId = 0;
let state = 'live', lostAt = 0, retryTimer = 0, delay = RETRY_MIN, retryAt = 0, lists = 0, caughtUp = 0, scope = '';
let probing = null;
let noStreamingLists = false;
let unsettled = false; // the connection was lost, or history was gone, and nothing was said yet of how it went

const META = 'application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json';
const TABLE = 'application/json;as=Table;g=meta.k8s.io;v=v1,application/json';
const accept = (f) => (f.as === 'table' ? TABLE : f.as === 'meta' ? META : 'application/json');
const keyOf = (m) => (m.namespace ? m.namespace + '/' + m.name : m.name);
const newest = (a, b) => (+b > +a ? b : a);

// ---- the stream
function connect() {
  if (socket) return;
  socket = new WebSocket(`ws://${location.host}/stream`);
  socket.onopen = () => { open = true; probing = null; delay = RETRY_MIN; start(); };
  socket.onmessage = (e) => receive(e.data);
  socket.onclose = () => {
    const was = open;
    socket = null; open = false; byStream.clear();
    for (const f of feeds.values()) if (!f.denied) { f.stream = 0; set(f, 'lost'); }
    lose(was ? 'The connection of this page was closed.' : 'headwater ui does not answer.');
  };
}
const say = (message) => { if (open) socket.send(JSON.stringify(message)); };

function receive(text) {
  if (text[0] === '{') {
    const m = JSON.parse(text), f = byStream.get(m.id);
    if (!f) return;
    if (m.opened) opened(f);
    if (m.closed) { byStream.delete(m.id); f.stream = 0; closed(f, m.closed); }
    return;
  }
  const space = text.indexOf(' '), f = byStream.get(+text.slice(0, space));
  if (!f) return;
  f.bytes += text.length - space;
  let from = space + 1;
  while (from < text.length) {
    let to = text.indexOf('\n', from);
    if (to < 0) to = text.length;
    if (to > from) event(f, JSON.parse(text.slice(from, to)));
    if (!f.stream) return; // it ended in the middle
    from = to + 1;
  }
}

// ---- feeds
function start() {
  const waiting = [...feeds.values()].filter((f) => !f.stream && !f.denied);
  if (state === 'lost') { // one asks first: the server may still be away
    probing = waiting[0];
    if (probing) watch(probing); else recovered();
  } else for (const f of waiting) watch(f);
}
function watch(f) {
  if (!open || f.stream || f.listing) return;
  const q = new URLSearchParams({ watch: '1', allowWatchBookmarks: 'true', ...f.query });
  if (f.lines) { q.delete('allowWatchBookmarks'); } else if (f.rv) q.set('resourceVersion', f.rv);
  else if (noStreamingLists) return list(f);
  else { q.set('sendInitialEvents', 'true'); q.set('resourceVersionMatch', 'NotOlderThan'); }
  if (f.as === 'table') q.set('includeObject', 'Metadata');
  if (!f.rv && !f.lines) { f.seen = new Set(); set(f, f.once ? 'relist' : 'list'); count(f); }
  f.stream = ++streamId; byStream.set(f.stream, f);
  say({ open: { id: f.stream, path: `${f.base}?${q}`, accept: accept(f) } });
}
// A list that had not ended before is not another one.
function count(f) { if (f.once) { lists++; f.relists++; } }
// Servers without streaming lists: pages of a list, then the watch.
async function list(f) {
  f.listing = true; f.seen = new Set(); set(f, f.once ? 'relist' : 'list'); count(f);
  let rv = '', next = '';
  try {
    do {
      const q = new URLSearchParams({ limit: '500', ...f.query });
      if (next) q.set('continue', next);
      if (f.as === 'table') q.set('includeObject', 'Metadata');
      const r = await fetch(`${f.base}?${q}`, { headers: { accept: accept(f) } });
      if (!r.ok) throw Object.assign(new Error(await r.text()), { code: r.status });
      const page = await r.json();
      rv = page.metadata.resourceVersion; next = page.metadata.continue || '';
      f.total = f.seen.size + (page.items || page.rows || []).length + (page.metadata.remainingItemCount || 0);
      if (page.columnDefinitions) columns(f, page.columnDefinitions);
      for (const row of page.rows || []) put(f, 'ADDED', row.object.metadata, row);
      for (const o of page.items || []) put(f, 'ADDED', o.metadata, { kind: page.kind?.replace(/List$/, ''), apiVersion: page.apiVersion, ...o });
    } while (next && feeds.has(f.id));
  } catch (e) {
    f.listing = false;
    if (feeds.has(f.id)) closed(f, { code: e.code || 502, message: message(e.message) });
    return;
  }
  f.listing = false; f.rv = rv;
  if (feeds.has(f.id)) { synced(f); watch(f); }
}
const message = (text) => { try { return JSON.parse(text).message || text; } catch { return text; } };

function opened(f) {
  if (f === probing) { probing = null; recovered(); }
  if (f.rv || f.lines) { if (f.state === 'lost') f.resumes++; set(f, 'live'); }
  f.denied = null;
}
function event(f, e) {
  if (f.lines) { f.events++; changed(f, 'line' + f.events, 'LINE', e); return; }
  const o = e.object;
  if (e.type === 'ERROR') {
    say({ close: { id: f.stream } }); byStream.delete(f.stream); f.stream = 0;
    return closed(f, { code: o.code || 500, message: o.message || '' });
  }
  const table = o.kind === 'Table';
  if (table && o.columnDefinitions) columns(f, o.columnDefinitions);
  const row = table ? o.rows[0] : null, meta = table ? (row?.object?.metadata || o.metadata) : o.metadata;
  if (e.type === 'BOOKMARK') {
    f.rv = meta.resourceVersion || o.metadata.resourceVersion || f.rv;
    if (meta.annotations?.['k8s.io/initial-events-end'] === 'true') synced(f); else dirty(f);
    return;
  }
  f.events++;
  if (f.synced && f.state === 'live') { f.fresh++; caughtUp++; }
  put(f, e.type, meta, table ? row : o);
  if (f.synced) f.rv = meta.resourceVersion || f.rv;
}
function columns(f, list) { f.columns = list; f.newColumns = true; dirty(f); }
function put(f, type, meta, o) {
  const key = keyOf(meta), had = f.keys.get(key);
  f.seen?.add(key);
  f.newest = newest(f.newest, meta.resourceVersion);
  if (type === 'DELETED') { if (had) { f.keys.delete(key); space(f, meta.namespace, -1); } } else {
    if (!had) space(f, meta.namespace, 1);
    f.keys.set(key, f.counted || f.every ? { uid: meta.uid, owners: meta.ownerReferences?.map((r) => r.uid), born: meta.creationTimestamp, rv: meta.resourceVersion } : 1);
    if (!f.synced && had?.rv && had.rv === meta.resourceVersion) return; // listed again, and the same
  }
  if (f.as === 'meta') { if (f.synced) f.moved++; return; }
  if (f.every) return changed(f, key + ' ' + f.events, type, { at: Date.now(), obj: mask(o) });
  changed(f, key, type, f.as === 'table' ? { key, cells: o.cells, metadata: pick(meta), got: Date.now() } : mask(f.slim ? slim(f.slim, o) : o));
}
const pick = (m) => ({ name: m.name, namespace: m.namespace, uid: m.uid, labels: m.labels, resourceVersion: m.resourceVersion, creationTimestamp: m.creationTimestamp, deletionTimestamp: m.deletionTimestamp });
const space = (f, ns, d) => { if (ns) f.spaces.set(ns, (f.spaces.get(ns) || 0) + d); };
function synced(f) {
  if (f.seen) { // what a new list no longer has is gone
    for (const key of [...f.keys.keys()]) if (!f.seen.has(key) && !f.every) { const ns = key.includes('/') ? key.split('/')[0] : ''; f.keys.delete(key); space(f, ns, -1); if (f.as !== 'meta') changed(f, key, 'DELETED', null); }
    f.seen = null;
  }
  f.synced = true; f.once = true; f.denied = null;
  set(f, 'live'); dirty(f);
  if (state === 'relist' && ![...feeds.values()].some((x) => x.state === 'relist')) settle();
}
function closed(f, why) {
  const before = f.state;
  if (why.code === 200) { f.stream = 0; watch(f); return; } // a watch has a maximum time
  if (f.history && why.code !== 200) { f.denied = why; set(f, 'denied'); return dirty(f); }
  if (why.code === 410) {
    f.rv = ''; f.synced = false; f.gone = true;
    unsettled = true;
    if (state === 'live') { state = 'relist'; caughtUp = 0; lists = 0; tell({ note: 'relist', code: 410, message: why.message }); }
    if (f === probing) { probing = null; recovered(true); } else if (state === 'lost') state = 'relist';
    return watch(f);
  }
  if ((why.code === 400 || why.code === 422) && !f.rv && !noStreamingLists && !f.lines && /sendInitialEvents|resourceVersionMatch/.test(why.message)) { noStreamingLists = true; return watch(f); }
  if (why.code === 502 || why.code === 504 || why.code === 503) { set(f, 'lost'); if (f === probing) probing = null; return lose(why.message); }
  if (why.code === 429) { set(f, 'lost'); setTimeout(() => { if (feeds.has(f.id)) watch(f); }, 1000 + Math.random() * 2000); return; }
  if (f === probing) { probing = null; recovered(); }
  f.denied = { code: why.code, message: why.message };
  set(f, before === 'list' ? 'denied' : 'denied'); dirty(f);
  clearTimeout(f.again);
  f.again = setTimeout(() => { if (feeds.has(f.id)) { f.denied = null; watch(f); } }, 30000);
}

// ---- connection
function lose(why) {
  unsettled = true;
  if (state !== 'lost') { state = 'lost'; lostAt = Date.now(); lists = 0; caughtUp = 0; delay = RETRY_MIN; tell({ note: 'lost', message: why }); }
  if (retryTimer || probing) return;
  retryAt = Date.now() + delay;
  retryTimer = setTimeout(retry, delay);
  delay = Math.min(RETRY_MAX, delay * 1.7);
}
function retry() { clearTimeout(retryTimer); retryTimer = 0; if (open) start(); else connect(); }
function recovered(relist) {
  if (state !== 'lost') return start();
  lists = 0; caughtUp = 0; delay = RETRY_MIN;
  state = relist ? 'relist' : 'live';
  if (relist) tell({ note: 'relist', code: 410 });
  start();
  if (!relist) setTimeout(settle, 400); // other watches may still get 410
}
// Says how it went, once every watch is back.
function settle() {
  if (!unsettled) return;
  const away = [...feeds.values()].some((f) => !f.denied && (f.state === 'lost' || f.state === 'relist'));
  if (state === 'lost') return;
  if (away) return void setTimeout(settle, 200);
  state = 'live'; unsettled = false;
  tell(lists ? { note: 'relisted', lists } : { note: 'resumed', events: caughtUp });
  for (const f of feeds.values()) f.gone = false;
}

// ---- to the page
const waiting = new Set();
let passing = 0;
function dirty(f) { waiting.add(f); if (!passing) passing = setTimeout(pass, PASS_EVERY); }
function changed(f, key, type, o) { f.pending.set(key, [type, o]); if (f.synced) f.moved++; dirty(f); }
function pass() {
  passing = 0;
  const batch = [];
  for (const f of waiting) {
    batch.push({ id: f.id, changes: [...f.pending], columns: f.newColumns ? f.columns : null, ready: f.synced, denied: f.denied, n: f.keys.size, rv: f.rv, total: f.total });
    f.pending = new Map(); f.newColumns = false;
  }
  waiting.clear();
  postMessage({ batch, rev: revision() });
}
function revision() { let rev = 0; for (const f of feeds.values()) if (f.revised) rev = Math.max(rev, +f.newest || 0, +f.rv || 0); return rev; }
function set(f, to) { if (f.state !== to) { f.state = to; tell({}); } }
let telling = 0;
const notes = [];
function tell(note) {
  if (note.note) notes.push({ ...note, at: Date.now(), rev: revision() });
  if (!telling) telling = setTimeout(() => { telling = 0; postMessage({ conn: { state, notes: notes.splice(0), retryAt, lostAt } }); }, 0);
}
let last = Date.now();
setInterval(() => {
  const now = Date.now(), seconds = (now - last) / 1000;
  last = now;
  const stats = [];
  for (const f of feeds.values()) {
    const quick = f.moved / seconds;
    f.moved = 0;
    stats.push({ id: f.id, n: scope && f.namespaced ? f.spaces.get(scope) || 0 : f.keys.size, all: f.keys.size, rate: f.synced ? quick : 0, state: f.state, rv: f.rv || f.newest, events: f.events, bytes: f.bytes, resumes: f.resumes, relists: f.relists, denied: f.denied });
  }
  postMessage({ second: stats, rev: revision() });
}, 1000);

// ---- questions of the page
function find(q) {
  const hits = [];
  for (const f of feeds.values()) {
    if (!f.counted || f.plural === 'events') continue;
    let n = 0;
    for (const key of f.keys.keys()) if (key.includes(q)) { hits.push([f.counted, key]); if (++n > 3) break; }
    if (hits.length > NAMES_MAX) break;
  }
  return hits;
}
// The owners of an object up to the first, and everything below that, with the kinds that are counted.
function tree(uid) {
  const all = new Map(), below = new Map();
  for (const f of feeds.values()) {
    if (!f.counted) continue;
    for (const [key, m] of f.keys) {
      if (m === 1) continue;
      all.set(m.uid, { kind: f.counted, key, ...m });
      for (const up of m.owners || []) { let list = below.get(up); if (!list) below.set(up, (list = [])); list.push(m.uid); }
    }
  }
  let top = uid;
  for (let i = 0; i < 6; i++) { const up = all.get(top)?.owners?.find((u) => all.has(u)); if (!up) break; top = up; }
  const out = [];
  const walk = (u, depth) => {
    const me = all.get(u);
    if (!me || depth > 6 || out.length > 200) return;
    const kids = (below.get(u) || []).sort((a, b) => (all.get(a).born < all.get(b).born ? 1 : -1));
    out.push({ uid: u, kind: me.kind, key: me.key, depth, kids: kids.length });
    for (const k of kids) walk(k, depth + 1);
  };
  walk(top, 0);
  return out;
}

onmessage = ({ data: m }) => {
  if (m.open) {
    const f = { ...m.open, stream: 0, rv: m.open.rv || '', newest: '', keys: new Map(), spaces: new Map(), pending: new Map(), seen: null, synced: !!m.open.rv, columns: null, newColumns: false, denied: null, state: 'list', once: false, relists: 0, resumes: 0, events: 0, bytes: 0, moved: 0, fresh: 0 };
    feeds.set(f.id, f);
    if (open) { if (state !== 'lost') watch(f); } else connect();
  } else if (m.close) {
    const f = feeds.get(m.close);
    if (!f) return;
    feeds.delete(f.id); waiting.delete(f); clearTimeout(f.again);
    if (f.stream) { say({ close: { id: f.stream } }); byStream.delete(f.stream); }
    if (f === probing) { probing = null; if (state === 'lost') lose(''); }
  } else if (m.retry) { if (state === 'lost' && !probing) retry(); } else if (m.again) { const f = feeds.get(m.again); if (f?.denied) { f.denied = null; clearTimeout(f.again); watch(f); } } else if ('scope' in m) scope = m.scope;
  else if (m.names) postMessage({ answer: m.ask, value: [...[...feeds.values()].find((f) => f.counted === m.names)?.keys.keys() || []] });
  else if (m.find) postMessage({ answer: m.ask, value: find(m.find) });
  else if (m.tree) postMessage({ answer: m.ask, value: tree(m.tree) });
};
connect();
