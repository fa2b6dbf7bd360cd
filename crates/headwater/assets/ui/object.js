// One object: its text, every kept version of it, what changed, who owns it and what it owns.
import { h, fill, text, num, age, clockTime, calm } from './dom.js';
import { glyph, phaseOf, statusText } from './glyph.js';
import { ask, core, Feed, kind, live, on, pathOf } from './live.js';
import { hrefOf } from './route.js';
import { diff, lines, pair } from './yaml.js';

const noise = /^metadata\.(resourceVersion|managedFields)/;

// How far back versions are asked for, in revisions; the server answers 410 to what it no longer keeps.
const REACH = [50000, 10000, 2000, 300];
const KEEP = 1000;      // versions of an object that the page holds
const READ_MAX = 10000; // milliseconds for reading the past

// Who wrote a version: the field manager whose entry changed last.
const entry = (m) => `${m.manager}|${m.operation}|${m.subresource || ''}`;
function writer(o, before) {
  const had = new Map((before?.metadata.managedFields || []).map((m) => [entry(m), m.time + JSON.stringify(m.fieldsV1)]));
  const now = o.metadata.managedFields || [], changed = now.filter((m) => had.get(entry(m)) !== m.time + JSON.stringify(m.fieldsV1));
  const list = before && changed.length ? changed : now;
  return list.reduce((a, m) => (!a || m.time >= a.time ? m : a), null);
}
const wroteAt = (o) => { const t = (o.metadata.managedFields || []).reduce((a, m) => (m.time > a ? m.time : a), o.metadata.creationTimestamp || ''); return t ? Date.parse(t) : Date.now(); };

export function object(id, key) {
  const k = kind(id), slash = key.indexOf('/'), ns = slash < 0 ? '' : key.slice(0, slash), name = key.slice(slash + 1);
  const back = '#/t/' + id;
  if (!k) return { title: name, el: h('section', { class: 'view' }, h('div', { class: 'state' }, h('div', { class: 'big' }, '404'), h('h2', {}, 'No such kind'), h('p', {}, `The server has no resource called “${id}”.`))) };
  let o = null, uid = '', gone = null, vs = [], at = -1, base = 0, pinned = false, follow = true, mode = 'yaml', folded = true, arrived = false;
  const spec = { base: pathOf(k, ns), as: 'object', every: true, plural: k.plural, of: id, namespaced: k.namespaced, revised: !k.live, query: { fieldSelector: 'metadata.name=' + name } };
  let feed = new Feed(spec), past = null, reach = 0, pastTimer = 0;
  const stop = []; let first = true;
  const code = h('div', { class: 'code', tabindex: '0', role: 'region', 'aria-label': 'Object as YAML' });
  const line = h('div', { class: 'vline', role: 'status' }), paths = h('div', { class: 'vpaths' });
  const track = h('div', { class: 'tl-track' }), names = h('div', { class: 'tl-names' });
  const tl = h('div', { class: 'tl', role: 'slider', tabindex: '0', 'aria-label': 'Versions', 'aria-valuemin': '1' }, names, track);
  const seg = (id, label) => h('button', { class: 'seg', type: 'button', 'aria-pressed': String(mode === id), onclick: () => { mode = id; show(); }, 'data-m': id }, label);
  const segs = [seg('yaml', 'YAML'), seg('diff', 'Difference')];
  const liveBtn = h('button', { class: 'btn follow', type: 'button', onclick: () => { follow = true; at = vs.length - 1; if (!pinned) base = Math.max(0, at - 1); show(); } });
  const foldBtn = h('button', { class: 'btn wide-only', type: 'button', 'aria-pressed': 'false', onclick: () => { folded = !folded; foldBtn.setAttribute('aria-pressed', String(!folded)); show(); } }, 'Managed fields');
  const tree = h('div', { class: 'tree', role: 'tree', 'aria-label': 'Owners and owned objects' }), evEl = h('ol', { class: 'events small' }), conds = h('div', { class: 'conds' }), status = h('span', { class: 'ostatus' }), facts = h('dl', { class: 'facts' });
  const state = h('div', { class: 'state' }, h('h2', {}, 'Reading'));
  const warn = h('div', { class: 'inline-note', hidden: true });
  const el = h('section', { class: 'view object', 'aria-label': key },
    h('header', { class: 'bar obar' }, h('nav', { class: 'crumbs', 'aria-label': 'Where you are' }, h('a', { href: back }, k.plural), ns ? h('span', { class: 'sub' }, ns) : null, h('h1', {}, name)), status, h('div', { class: 'grow' }), facts),
    warn, state,
    h('section', { class: 'panel p-time' }, h('header', {}, h('h2', {}, 'Versions'), line, h('div', { class: 'grow' }), h('span', { class: 'wide-only hint' }, h('kbd', {}, '←'), h('kbd', {}, '→'), ' step  ', h('kbd', {}, '⇧'), ' with arrows: compare from'), liveBtn), tl),
    h('div', { class: 'ocols' },
      h('section', { class: 'panel p-code' }, h('header', {}, h('div', { class: 'segs', role: 'group', 'aria-label': 'Show' }, segs), paths, h('div', { class: 'grow' }), foldBtn), code),
      h('div', { class: 'oside' },
        h('section', { class: 'panel' }, h('header', {}, h('h2', {}, 'Owners and owned')), tree),
        h('section', { class: 'panel' }, h('header', {}, h('h2', {}, 'Conditions')), conds),
        h('section', { class: 'panel' }, h('header', {}, h('h2', {}, 'Events')), evEl))));

  function lineEl(l, mark, flash) {
    return h('div', { class: 'ln' + (mark ? ' ' + mark : '') + (flash ? ' flash' : '') },
      h('span', { class: 'gut', 'aria-hidden': 'true' }), h('span', { class: 'src' }, l.pre, l.key !== null ? h('span', { class: 'yk' }, l.key + ':') : null, l.val !== '' ? [l.key !== null ? ' ' : '', h('span', { class: 'yv y-' + l.t }, l.val)] : null, l.fold ? h('button', { class: 'foldmark', type: 'button', onclick: () => foldBtn.click() }, l.fold) : null));
  }
  function show() {
    const v = vs[at], keep = code.scrollTop;
    if (!v) return;
    for (const s of segs) s.setAttribute('aria-pressed', String(s.dataset.m === mode));
    const b = lines(v.obj, folded), from = mode === 'diff' ? vs[base] : vs[at - 1];
    const ops = from ? diff(lines(from.obj, folded), b) : b.map((l) => [' ', l]);
    const changed = new Set(ops.filter((x) => x[0] !== ' ' && !noise.test(x[1].path)).map((x) => x[1].path));
    const frag = [];
    if (mode === 'yaml') {
      let dropped = 0;
      const olds = new Set(ops.filter((x) => x[0] === '-').map((x) => x[1].path));
      for (const [op, l] of ops) {
        if (op === '-') { if (!ops.some((x) => x[0] === '+' && x[1].path === l.path)) dropped++; continue; }
        const e = lineEl(l, op === '+' ? (noise.test(l.path) ? 'faint' : olds.has(l.path) ? 'chg' : 'new') : '', arrived && op === '+');
        if (dropped) { e.classList.add('cutabove'); e.dataset.cut = `${dropped} line${dropped > 1 ? 's' : ''} removed`; dropped = 0; }
        frag.push(e);
      }
    } else {
      pair(ops);
      const near = ops.map((_, i) => { for (let d = -3; d <= 3; d++) if (ops[i + d] && ops[i + d][0] !== ' ') return true; return false; });
      let skip = 0;
      const bar = () => { if (skip) frag.push(h('div', { class: 'skipbar' }, `${skip} unchanged lines`)); skip = 0; };
      ops.forEach(([op, l], i) => { if (!near[i]) { skip++; return; } bar(); frag.push(lineEl(l, (op === '+' ? 'add' : op === '-' ? 'del' : '') + (op !== ' ' && noise.test(l.path) ? ' dim' : ''))); });
      bar();
      if (base === at) fill(code, h('div', { class: 'state' }, h('p', {}, 'Both sides are the same version. Step with ⇧← to compare from an older one.')));
    }
    if (!(mode === 'diff' && base === at)) code.replaceChildren(...frag);
    code.className = 'code m-' + mode;
    if ((arrived || first) && at === vs.length - 1) { const f = code.querySelector('.chg, .new'); if (f && (f.offsetTop < keep || f.offsetTop > keep + code.clientHeight - 40) && !reading) code.scrollTo({ top: Math.max(0, f.offsetTop - 80), behavior: calm() ? 'auto' : 'smooth' }); else code.scrollTop = keep; } else code.scrollTop = keep;
    arrived = first = false;
    fill(line, h('b', {}, `${at + 1} of ${vs.length}`), h('span', { class: 'tnum' }, 'revision ' + num(v.rev)), h('span', { class: 'tnum wide-only' }, clockTime(v.t, true)), h('span', { class: 'by wide-only', title: v.by }, 'by ', h('b', {}, v.by)), mode === 'diff' ? h('span', { class: 'tnum cmp' }, `compared with ${num(vs[base].rev)}`) : null);
    const ps = [...changed].filter((p) => ![...changed].some((q) => q !== p && (q.startsWith(p + '.') || q.startsWith(p + '['))));
    const lead = ps.filter((p) => !/lastTransitionTime|\.reason$/.test(p)); if (lead.length) ps.splice(0, ps.length, ...lead);
    const short = (p) => p.replace(/conditions\[\d+\]/, 'conditions').replace('containerStatuses[0]', 'container').replace(/^metadata\.annotations\..*\//, 'annotations.');
    fill(paths, ps.length ? [h('span', { class: 'sub' }, mode === 'diff' ? 'differs in' : 'this write changed'), [...new Set(ps.map(short))].slice(0, 2).map((p) => h('code', {}, p)), new Set(ps.map(short)).size > 2 ? h('span', { class: 'sub' }, `and ${new Set(ps.map(short)).size - 2} more`) : null] : h('span', { class: 'sub' }, at === 0 ? (v.type === 'ADDED' && v.old ? 'it was created' : vs.length > 1 || v.old ? 'oldest version that the server keeps' : 'first version that this page saw') : 'nothing but the revision'));
    const behind = vs.length - 1 - at;
    follow = behind === 0;
    liveBtn.classList.toggle('on', follow);
    fill(liveBtn, h('span', { class: 'dot' }), follow ? 'Following' : `${behind} newer`, follow ? null : h('kbd', {}, 'End'));
    tl.setAttribute('aria-valuemax', vs.length); tl.setAttribute('aria-valuenow', at + 1); tl.setAttribute('aria-valuetext', `Version ${at + 1} of ${vs.length}, revision ${v.rev}, by ${v.by}`);
    timeline();
  }
  let reading = false;
  let sig = '';
  code.addEventListener('wheel', () => { reading = true; setTimeout(() => { reading = false; }, 4000); }, { passive: true });
  function timeline() {
    const who = [...new Set(vs.map((v) => v.by))];
    fill(names, who.map((w) => h('div', { class: 'tl-name' }, w)));
    const room = Math.max(200, track.clientWidth - 60), folds = vs.filter((v, i) => i && v.t - vs[i - 1].t > 20000).length;
    const step = Math.max(16, Math.min(92, (room - folds * 62) / Math.max(1, vs.length - 1 - folds))), LH = 20, H = who.length * LH, ticks = step >= 58;
    const xs = []; let x = 14; const gaps = [];
    vs.forEach((v, i) => { if (i) { const dt = v.t - vs[i - 1].t; if (dt > 20000) { gaps.push([x + 6, age(dt)]); x += 62; } else x += step; } xs.push(x); });
    const W = Math.max(x + 24, track.clientWidth - 8);
    const svg = h('svg:svg', { width: W, height: H + (ticks ? 20 : 8), viewBox: `0 0 ${W} ${H + (ticks ? 20 : 8)}`, 'aria-hidden': 'true' });
    who.forEach((_, r) => svg.append(h('svg:line', { class: 'lane', x1: 0, x2: W, y1: r * LH + LH / 2 + 0.5, y2: r * LH + LH / 2 + 0.5 })));
    for (const [gx, label] of gaps) { svg.append(h('svg:rect', { class: 'gapbg', x: gx + 2, y: 0, width: 46, height: H })); svg.append(h('svg:text', { class: 'gap', x: gx + 25, y: H / 2 + 4, 'text-anchor': 'middle' }, label)); }
    if (ticks) vs.forEach((v, i) => { const dt = i ? Math.round(v.t - vs[i - 1].t) : 0; if (!i || dt <= 20000) svg.append(h('svg:text', { class: 'gap', x: xs[i], y: H + 14, 'text-anchor': i ? 'middle' : 'start' }, i ? '+' + (dt < 1000 ? dt + ' ms' : (dt / 1000).toFixed(1) + ' s') : clockTime(v.t))); else svg.append(h('svg:text', { class: 'gap', x: xs[i], y: H + 14, 'text-anchor': 'middle' }, clockTime(v.t))); });
    let d = ''; vs.forEach((v, i) => { const y = who.indexOf(v.by) * LH + LH / 2; d += i ? (vs[i].t - vs[i - 1].t > 20000 ? `M${xs[i]} ${y}` : `L${xs[i]} ${y}`) : `M${xs[i]} ${y}`; });
    svg.append(h('svg:path', { class: 'thread', d }));
    if (mode === 'diff' && base !== at) svg.append(h('svg:rect', { class: 'span', x: Math.min(xs[base], xs[at]), y: 0, width: Math.abs(xs[at] - xs[base]), height: H }));
    if (mode === 'diff') svg.append(h('svg:line', { class: 'cur base', x1: xs[base], x2: xs[base], y1: 0, y2: H }));
    svg.append(h('svg:line', { class: 'cur', x1: xs[at], x2: xs[at], y1: 0, y2: H }));
    vs.forEach((v, i) => { const y = who.indexOf(v.by) * LH + LH / 2; svg.append(h('svg:circle', { class: 'ver' + (i === at ? ' on' : '') + (mode === 'diff' && i === base ? ' base' : '') + (v.type === 'DELETED' ? ' dead' : v.type === 'ADDED' ? ' birth' : ''), cx: xs[i], cy: y, r: i === at ? 5 : 3.5 })); });
    svg.addEventListener('pointerdown', (e) => { const go = (ev) => { const px = ev.clientX - svg.getBoundingClientRect().left; let best = 0; xs.forEach((q, i) => { if (Math.abs(q - px) < Math.abs(xs[best] - px)) best = i; }); if (ev.shiftKey) { base = best; pinned = true; mode = 'diff'; } else { at = best; if (!pinned) base = Math.max(0, at - 1); } show(); }; go(e); const mv = (ev) => go(ev), up = () => { removeEventListener('pointermove', mv); removeEventListener('pointerup', up); }; addEventListener('pointermove', mv); addEventListener('pointerup', up); e.preventDefault(); });
    const sx = track.scrollLeft; track.replaceChildren(svg);
    track.scrollLeft = xs[at] > sx + track.clientWidth - 20 || xs[at] < sx ? xs[at] - track.clientWidth * 0.7 : sx;
  }
  function step(d, shift) {
    if (shift) { base = Math.max(0, Math.min(vs.length - 1, base + d)); pinned = true; mode = 'diff'; } else { at = Math.max(0, Math.min(vs.length - 1, at + d)); if (!pinned) base = Math.max(0, at - 1); }
    show();
  }
  // ---- the side ----
  const small = (n) => core(n.kind).get(n.key);
  async function family() {
    const nodes = await ask({ tree: uid });
    if (!nodes.length) return fill(tree, h('p', { class: 'quiet' }, 'Nothing owns it, and it owns nothing.'));
    const rows = [], shown = new Map(), up = o.metadata.ownerReferences?.map((r) => r.uid) || [];
    let skip = Infinity;
    for (const n of nodes) {
      if (n.depth > skip) continue;
      skip = Infinity;
      const me = n.uid === uid, parent = n.depth, nth = (shown.get(parent) || 0) + 1;
      if (n.depth < (rows.at(-1)?.depth ?? 0)) for (const d of [...shown.keys()]) if (d > n.depth) shown.delete(d);
      shown.set(parent, nth);
      if (nth > 8 && !me && !up.includes(n.uid)) { skip = n.depth; const last = rows.at(-1); if (last?.more) last.more++; else rows.push({ depth: n.depth, more: 1 }); continue; }
      const x = small(n), p = x && phaseOf(x), kd = kind(n.kind);
      rows.push({ depth: n.depth, el: h('a', { class: 'tn d' + Math.min(n.depth, 4) + (me ? ' me' : ''), role: 'treeitem', 'aria-level': n.depth + 1, 'aria-current': me ? 'true' : null, href: hrefOf(n.kind, n.key) }, p ? glyph(p) : h('span', { class: 'nog' }), h('span', { class: 'tk' }, kd?.kind || n.kind), h('span', { class: 'tname' }, n.key.split('/').pop()), h('span', { class: 'sub tnum' }, x?.kind === 'Pod' ? statusText(x) : x?.spec?.replicas !== undefined ? `${x.status.readyReplicas || 0}/${x.spec.replicas}` : '')) });
    }
    fill(tree, rows.map((r) => r.el || h('div', { class: 'tn more d' + Math.min(r.depth, 4) }, `and ${r.more} more`)), rows.length > 1 ? null : h('p', { class: 'quiet' }, 'Nothing owns it, and it owns nothing.'));
  }
  function side() {
    if (!o) return;
    family();
    const cs = o.status?.conditions || [];
    fill(conds, cs.length ? cs.map((c) => h('div', { class: 'cond' }, glyph(c.status === 'True' ? 'running' : c.status === 'False' ? 'pending' : 'failed'), h('b', {}, c.type), h('span', { class: 'sub' }, c.status === 'True' ? 'yes' : c.status === 'False' ? 'no' : 'not known', c.reason ? ', ' + c.reason : ''), c.lastTransitionTime ? h('time', { class: 'sub tnum' }, age(Date.now() - Date.parse(c.lastTransitionTime))) : null)) : h('p', { class: 'quiet' }, 'This kind reports no conditions.'));
    const evs = [...core('events').values()].filter((e) => e.involvedObject.uid === uid).sort((a, b) => (a.lastTimestamp < b.lastTimestamp ? 1 : -1)).slice(0, 12);
    fill(evEl, evs.length ? evs.map((e) => h('li', { class: 'ev' + (e.type === 'Warning' ? ' warn' : '') }, h('time', {}, clockTime(Date.parse(e.lastTimestamp))), h('div', {}, h('span', { class: 'evhead' }, e.type === 'Warning' ? glyph('failed', 9) : null, h('b', {}, e.reason), e.count > 1 ? h('span', { class: 'times' }, '×' + e.count) : null), h('span', { class: 'msg' }, e.message)))) : h('li', { class: 'quiet' }, 'No events.'));
    const ph = phaseOf(o);
    fill(status, ph ? [glyph(gone ? 'terminating' : ph), h('span', { class: 'tx-' + ph }, gone ? 'Deleted' : statusText(o))] : null);
    const f = [['Age', age(Date.now() - Date.parse(o.metadata.creationTimestamp))], o.spec?.nodeName ? ['Node', h('a', { href: hrefOf('nodes', o.spec.nodeName) }, o.spec.nodeName)] : null, o.status?.podIP ? ['Address', o.status.podIP] : null, ['Versions', num(vs.length)]].filter(Boolean);
    fill(facts, f.map(([a, b]) => h('div', {}, h('dt', {}, a), h('dd', { class: 'tnum' }, b))));
  }
  // ---- versions
  const version = (obj, type, t, old) => ({ obj, type, t, old, rev: +obj.metadata.resourceVersion, by: '' });
  const name_ = () => vs.forEach((v, i) => { v.by = writer(v.obj, vs[i - 1]?.obj)?.manager || 'not recorded'; });
  function arrive(type, { at: t, obj }) {
    if (vs.length && vs.at(-1).rev >= +obj.metadata.resourceVersion) return;
    if (uid && obj.metadata.uid !== uid) { vs = []; pinned = false; } // another object of that name
    const fresh = !uid || obj.metadata.uid !== uid;
    o = obj; uid = obj.metadata.uid; gone = type === 'DELETED' ? obj : null;
    vs.push(version(obj, type, fresh && type === 'ADDED' ? wroteAt(obj) : t, false));
    if (vs.length > KEEP) { vs.splice(0, vs.length - KEEP); at = Math.max(0, at - 1); }
    vs.at(-1).by = writer(obj, vs.at(-2)?.obj)?.manager || 'not recorded';
    warn.hidden = !gone;
    if (gone) fill(warn, h('b', {}, 'Deleted'), ` at revision ${num(+obj.metadata.resourceVersion)}. This is its last version.`);
    if (follow) { at = vs.length - 1; if (!pinned) base = Math.max(0, at - 1); arrived = !fresh; }
    if (fresh) earlier();
  }
  // What the server keeps of the past: a watch from an older revision, until it reaches the first
  // version that this page has.
  function earlier() {
    past?.end(); past = null; clearTimeout(pastTimer);
    if (k.live || !vs.length || reach >= REACH.length) return;
    const newest = vs[0].rev, from = Math.max(1, Math.max(live.rev, newest) - REACH[reach]);
    if (!newest || from >= newest) return;
    past = new Feed({ ...spec, history: true, revised: false, rv: String(from) });
    past.read = [];
    pastTimer = setTimeout(() => { past?.end(); past = null; }, READ_MAX);
  }
  function remember(ch) {
    const first = vs[0]?.rev;
    let done = false;
    for (const { type, obj } of ch.values()) {
      if (+obj.obj.metadata.resourceVersion >= first) { done = true; break; }
      if (obj.obj.metadata.uid === uid) past.read.push(version(obj.obj, type, wroteAt(obj.obj), true));
    }
    if (!done) return;
    const older = past.read.slice(-(KEEP - vs.length));
    past.end(); past = null; clearTimeout(pastTimer);
    if (!older.length) return;
    if (vs[0]) vs[0].t = wroteAt(vs[0].obj);
    vs = [...older, ...vs]; at += older.length; base = pinned ? base + older.length : Math.max(0, at - 1);
    name_(); show(); side();
  }
  stop.push(on((m) => {
    const ch = m.byFeed?.get(feed), old = past && m.byFeed?.get(past);
    if (ch) for (const { type, obj } of ch.values()) arrive(type, obj);
    if (old) { if (past.denied) { past.end(); past = null; reach++; earlier(); } else remember(old); }
    if (ch) {
      const missing = !o && (feed.ready || feed.denied);
      const appears = o && el.classList.contains('empty');
      state.hidden = !!o; el.classList.toggle('empty', !o);
      if (missing) { const d = feed.denied; fill(state, h('div', { class: 'big' }, d ? d.code : '404'), h('h2', {}, d ? `You may not read ${k.plural}` : 'Not there'), h('p', {}, d ? d.message : `The server has no ${k.kind} called “${key}”. If one is created, it shows up here.`), h('a', { class: 'btn', href: back }, 'All ' + k.plural)); }
      if (o) { show(); side(); }
      // What is hidden cannot have the focus.
      if (appears && document.activeElement === document.body) tl.focus({ preventScroll: true });
    } else if (m.second) side();
  }));
  return {
    el, title: name, back, theme() { show(); }, ready() { el.classList.add('empty'); },
    key(e) {
      if (e.key === 'ArrowLeft' || e.key === 'ArrowRight') { step(e.key === 'ArrowLeft' ? -1 : 1, e.shiftKey); e.preventDefault(); }
      if (e.key === 'Home') { at = 0; step(0); } if (e.key === 'End') liveBtn.click();
      if (e.key === 'd') { mode = mode === 'diff' ? 'yaml' : 'diff'; show(); }
      if (e.key === 'j' || e.key === 'k') code.scrollBy({ top: e.key === 'j' ? 60 : -60 });
    },
    destroy() { stop.forEach((f) => f()); clearTimeout(pastTimer); feed.end(); past?.end(); },
  };
}
