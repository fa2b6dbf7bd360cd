// The page's copy of the cluster: kinds by discovery, feeds by number, changes once a frame.
import { num } from './dom.js';

export const live = {
  kinds: new Map(), rev: 0, state: 'open', perSec: 0, headwater: false, log: [], streams: new Map(), note: null,
  since: Date.now(), session: {}, version: '', trend: Array(60).fill(0), retryAt: 0,
};
export const scope = { ns: '' };
export const inScope = (o) => !scope.ns || !o.metadata.namespace || o.metadata.namespace === scope.ns;

const subs = new Set(), feeds = new Map(), shared = new Map(), asked = new Map();
let worker = null, number = 0, question = 0, news = [], framed = false;
export const on = (fn) => { subs.add(fn); return () => subs.delete(fn); };
const tell = (what) => { for (const f of [...subs]) f(what); };
const LINGER = 30000; // a feed outlives its last view by this many milliseconds

// ---- feeds
export class Feed {
  constructor(spec) { Object.assign(this, { spec, id: ++number, objs: new Map(), columns: null, ready: false, denied: null, n: 0, total: 0, users: 0, rv: '' }); feeds.set(this.id, this); worker.postMessage({ open: { ...spec, id: this.id } }); }
  end() { feeds.delete(this.id); live.streams.delete(this.id); worker.postMessage({ close: this.id }); }
  again() { worker.postMessage({ again: this.id }); }
}
// A feed that views share. Call release when the view goes.
export function use(spec) {
  const name = JSON.stringify(spec);
  let f = shared.get(name);
  if (!f) { f = new Feed(spec); shared.set(name, f); }
  f.users++; clearTimeout(f.linger);
  return f;
}
export function release(f) {
  if (--f.users > 0) return;
  f.linger = setTimeout(() => { shared.delete(JSON.stringify(f.spec)); f.end(); }, LINGER);
}
export const ask = (what) => new Promise((done) => { asked.set(++question, done); worker.postMessage({ ...what, ask: question }); });
export const retry = () => worker.postMessage({ retry: true });
export const setScope = (ns) => { scope.ns = ns; worker.postMessage({ scope: ns }); };

// ---- kinds
export const pathOf = (k, ns, name) => `${k.base}${ns && k.namespaced ? `/namespaces/${encodeURIComponent(ns)}` : ''}/${k.plural}${name ? '/' + encodeURIComponent(name) : ''}`;
export const kind = (id) => live.kinds.get(id);
export const core = (id) => live.kinds.get(id)?.feed?.objs || EMPTY;
const EMPTY = new Map();
export const kindFor = (apiVersion, name) => { for (const k of live.kinds.values()) if (k.kind === name && (!apiVersion || k.group === groupOf(apiVersion))) return k.id; return [...live.kinds.values()].find((k) => k.kind === name)?.id; };
const groupOf = (apiVersion) => (apiVersion.includes('/') ? apiVersion.split('/')[0] : '');

const SLIM = { pods: 'Pod', nodes: 'Node', deployments: 'Deployment', replicasets: 'ReplicaSet', events: 'Event' };
const CORE = new Set(['pods', 'deployments', 'replicasets', 'jobs', 'services', 'configmaps', 'secrets', 'serviceaccounts', 'nodes', 'namespaces', 'leases', 'events']);
const COUNTED_MAX = 200;
const RAIL = [
  ['Workloads', (g, p) => (g === '' && /^(pods|replicationcontrollers)$/.test(p)) || /^(apps|batch|autoscaling)$/.test(g)],
  ['Network', (g, p) => (g === '' && /^(services|endpoints)$/.test(p)) || /^(networking|discovery)\.k8s\.io$/.test(g)],
  ['Config', (g, p) => (g === '' && /^(configmaps|secrets|serviceaccounts|resourcequotas|limitranges)$/.test(p)) || g === 'policy'],
  ['Storage', (g, p) => (g === '' && /^persistentvolume/.test(p)) || g === 'storage.k8s.io'],
  ['Cluster', (g) => g === '' || g.endsWith('.k8s.io')],
  ['Custom', () => true],
];
const railOf = (g, p) => RAIL.find(([, is]) => is(g, p))[0];
const ORDER = ['pods', 'deployments', 'replicasets', 'statefulsets', 'daemonsets', 'jobs', 'cronjobs', 'services', 'configmaps', 'secrets', 'serviceaccounts', 'nodes', 'namespaces', 'events'];
const order = (k) => { const i = ORDER.indexOf(k.id); return i < 0 ? 99 : i; };

const get = async (path, accept) => {
  const r = await fetch(path, { headers: { accept: accept || 'application/json' } });
  if (!r.ok) throw Object.assign(new Error((await r.text()).trim()), { code: r.status });
  return r.json();
};
export const read = get;
const AGGREGATED = 'application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json';
async function groups(path) {
  const doc = await get(path, AGGREGATED);
  if (doc.items) return doc.items.map((g) => ({ group: g.metadata.name || '', version: g.versions[0].version, resources: g.versions[0].resources.map((r) => ({ name: r.resource, kind: r.responseKind?.kind, namespaced: r.scope === 'Namespaced', verbs: r.verbs })) }));
  const versions = doc.groups ? doc.groups.map((g) => [g.name, g.preferredVersion.version]) : [['', doc.versions[0]]];
  return Promise.all(versions.map(async ([group, version]) => {
    const list = await get(group ? `/apis/${group}/${version}` : `/api/${version}`);
    return { group, version, resources: list.resources.filter((r) => !r.name.includes('/')) };
  }));
}
async function discover() {
  const found = (await Promise.all([groups('/api'), groups('/apis')])).flat();
  const kinds = [], names = new Map();
  for (const { group, version, resources } of found) for (const r of resources) {
    if (!r.verbs?.includes('list') || !r.verbs.includes('watch')) continue;
    if (group === 'events.k8s.io') continue; // the same objects as events
    kinds.push({ plural: r.name, kind: r.kind, group, version, apiVersion: group ? group + '/' + version : version, namespaced: r.namespaced, base: group ? `/apis/${group}/${version}` : `/api/${version}` });
    names.set(r.name, (names.get(r.name) || 0) + 1);
  }
  for (const k of kinds) {
    k.id = k.group === '' || names.get(k.plural) === 1 ? k.plural : k.plural + '.' + k.group;
    k.rail = railOf(k.group, k.plural); k.live = k.group === 'headwater.dev' || k.group === 'metrics.k8s.io'; // sampled: no revisions of the store
  }
  const rails = RAIL.map(([n]) => n);
  kinds.sort((a, b) => rails.indexOf(a.rail) - rails.indexOf(b.rail) || order(a) - order(b) || (a.id < b.id ? -1 : 1));
  const now = new Set(kinds.map((k) => k.id));
  for (const [id, k] of live.kinds) if (!now.has(id)) { k.feed?.end(); live.kinds.delete(id); }
  const next = new Map();
  for (const k of kinds) {
    const had = live.kinds.get(k.id);
    next.set(k.id, had && had.base === k.base && had.namespaced === k.namespaced ? had : { ...k, n: 0, all: 0, rate: 0, trend: Array(30).fill(0), denied: null, core: CORE.has(k.id) });
  }
  live.kinds = next;
  live.headwater = kinds.some((k) => k.live && k.plural === 'watchers');
  let counted = 0;
  for (const k of [...live.kinds.values()].sort((a, b) => Number(b.id in SLIM) - Number(a.id in SLIM))) {
    if (k.feed || k.live || ++counted > COUNTED_MAX) continue; // live resources change while they are looked at
    const known = SLIM[k.id];
    k.feed = new Feed({ base: pathOf(k), as: known ? 'object' : 'meta', slim: known, counted: k.id, plural: k.plural, namespaced: k.namespaced, revised: true });
  }
  tell({ kinds: true });
}
let found = 0;
// A new definition is a new kind; the documents follow it after a moment.
export function rediscover() { clearTimeout(found); found = setTimeout(() => discover().catch(() => {}), 700); }

// ---- what the worker says
const WORDS = {
  lost: (n) => ['Connection lost. Trying again', n.message || `What you see is the state at revision ${num(n.rev)}.`],
  relist: () => ['History is gone. Listing again', 'The server answered 410: it no longer keeps the changes since then.'],
  resumed: (n) => [`Resumed without loss at revision ${num(live.held ?? n.rev)}`, n.events ? `${num(n.events)} changes were caught up.` : 'Nothing had changed.'],
  relisted: (n) => [`Listed again at revision ${num(n.rev)}`, `${n.lists} ${n.lists === 1 ? 'kind was' : 'kinds were'} listed. Versions in between are not in the timelines.`],
  open: () => ['Connected', ''],
};
export function note(kindOf, n) {
  const [text, detail] = WORDS[kindOf](n);
  live.note = kindOf === 'open' ? null : { kind: kindOf, text, detail };
  live.log.unshift({ kind: kindOf, text, detail, t: n.at || Date.now() });
  if (live.log.length > 40) live.log.pop();
}
function heard({ data: m }) {
  if (m.batch) { news.push(m); if (!framed) { framed = true; if (document.hidden) setTimeout(frame, 200); else requestAnimationFrame(frame); } }
  if (m.conn) {
    for (const n of m.conn.notes) { if (n.note === 'lost') live.held = n.rev; note(n.note, n); }
    live.state = m.conn.state; live.retryAt = m.conn.retryAt;
    tell({ conn: true });
  }
  if (m.second) second(m);
  if (m.answer) { asked.get(m.answer)?.(m.value); asked.delete(m.answer); }
}
function frame() {
  framed = false;
  const byFeed = new Map(), ids = new Set();
  for (const m of news) {
    live.rev = Math.max(live.rev, m.rev);
    for (const b of m.batch) {
      const f = feeds.get(b.id);
      if (!f) continue;
      let ch = byFeed.get(f);
      if (!ch) byFeed.set(f, (ch = new Map()));
      for (const [key, [type, obj]] of b.changes) {
        if (type === 'DELETED') f.objs.delete(key); else if (type !== 'LINE' && !f.spec.every) f.objs.set(key, obj);
        ch.set(key, { type, obj });
      }
      if (b.columns) f.columns = b.columns;
      f.ready = b.ready; f.denied = b.denied; f.n = b.n; f.rv = b.rv; f.total = b.total;
      if (f.spec.counted) ids.add(f.spec.counted);
    }
  }
  news = [];
  tell({ byFeed, ids });
}
function second(m) {
  live.rev = Math.max(live.rev, m.rev);
  let total = 0, changedDefinitions = false;
  for (const s of m.second) {
    const f = feeds.get(s.id);
    if (!f) continue;
    live.streams.set(s.id, { ...s, spec: f.spec });
    const k = f.spec.counted && live.kinds.get(f.spec.counted);
    if (!k) continue;
    if (k.id === 'customresourcedefinitions' && s.rate > 0 && k.seen) changedDefinitions = true;
    k.seen = true; k.n = s.n; k.all = s.all; k.denied = s.denied; k.rate += (s.rate - k.rate) * 0.6; k.trend.push(k.rate); k.trend.shift();
    total += s.rate;
  }
  if (changedDefinitions) rediscover();
  live.perSec += (total - live.perSec) * 0.6;
  live.trend.push(live.perSec); live.trend.shift();
  tell({ second: true });
}
export async function begin() {
  const policy = window.trustedTypes ? trustedTypes.createPolicy('hw', { createScriptURL: (u) => { if (u !== '/worker.js') throw new TypeError(u); return u; } }) : { createScriptURL: (u) => u };
  worker = new Worker(policy.createScriptURL('/worker.js'), { type: 'module' });
  worker.onmessage = heard;
  for (let wait = 500; ; wait = Math.min(5000, wait * 1.5)) {
    try {
      live.session = await get('/session');
      await discover();
      break;
    } catch (e) {
      live.trouble = { code: e.code || 0, message: e.message };
      tell({ conn: true });
      await new Promise((r) => setTimeout(r, wait));
    }
  }
  live.trouble = null;
  if (live.state === 'open') live.state = 'live';
  get('/version').then((v) => { live.version = v.gitVersion || ''; tell({ conn: true }); }).catch(() => {});
  note('open', {}); live.log[0].detail = `Following ${live.kinds.size} kinds over one connection.`;
  tell({ conn: true });
}
