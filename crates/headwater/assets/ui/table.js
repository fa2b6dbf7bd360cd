// Any kind as a table, with the columns the server gives.
import { h, fill, text, num, rate } from './dom.js';
import { glyph } from './glyph.js';
import { live, on, kind, pathOf, release, scope, use } from './live.js';
import { VTable } from './vtable.js';
import { column, status } from './cells.js';
import { go, hrefOf } from './route.js';

const words = new WeakMap(); // what the filter looks at, once for each version of a row
export function table(id, query) {
  const k = kind(id);
  if (!k) return { title: id, el: h('section', { class: 'view' }, h('div', { class: 'state' }, h('div', { class: 'big' }, '404'), h('h2', {}, 'No such kind'), h('p', {}, `The server has no resource called “${id}”.`))) };
  let wide = false, rows = [], byKey = new Map(), stale = false, behind = false, sortedAt = 0, touched = 0, feed = null, cols = [], shown = null, phase = null;
  const stop = [], timers = new Set();
  const box = h('input', { class: 'filter', type: 'search', placeholder: `Filter ${k.plural}`, 'aria-label': 'Filter rows', spellcheck: 'false', autocomplete: 'off', value: query || '' });
  const count = h('span', { class: 'count', 'aria-live': 'polite' });
  const wideBtn = h('button', { class: 'btn', type: 'button', 'aria-pressed': 'false', onclick: () => { wide = !wide; wideBtn.setAttribute('aria-pressed', wide); columns(); rebuild(); } }, 'All columns', h('kbd', {}, 'w'));
  const recent = h('button', { class: 'btn wide-only', type: 'button', 'aria-pressed': 'false', onclick: () => { vt.recent = !vt.recent; recent.setAttribute('aria-pressed', String(vt.recent)); vt.mark(); vt.order(); vt.el.scrollTop = 0; } }, 'Latest change first', h('kbd', {}, 'r'));
  const sorter = h('select', { class: 'select phone-only', 'aria-label': 'Sort by', onchange: () => vt.sortBy(+sorter.value) });
  const vt = new VTable({ label: id, onOpen: (r) => go(hrefOf(id, r.key)) });
  const foot = { at: h('span'), rate: h('span'), hint: h('span', { class: 'wide-only' }) };
  const state = h('div', { class: 'state', hidden: true });
  const lens = h('svg:svg', { width: 14, height: 14, viewBox: '0 0 14 14', 'aria-hidden': 'true' }, h('svg:path', { d: 'M6 1.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9zM9.4 9.4l3.1 3.1', fill: 'none', stroke: 'currentColor', 'stroke-width': '1.4', 'stroke-linecap': 'round' }));
  const el = h('section', { class: 'view table-view', 'aria-label': k.kind },
    h('header', { class: 'bar' },
      h('h1', {}, k.plural, h('small', { class: 'wide-only' }, k.apiVersion)), count, h('div', { class: 'grow' }),
      h('label', { class: 'search' }, lens, box, h('kbd', {}, '/')),
      sorter, recent, h('span', { class: 'wide-only' }, wideBtn)),
    state, vt.el,
    h('footer', { class: 'foot' }, foot.at, foot.rate, h('div', { class: 'grow' }), foot.hint));
  fill(foot.hint, h('kbd', {}, 'j'), h('kbd', {}, 'k'), ' move  ', h('kbd', {}, '↵'), ' open  ', h('kbd', {}, '/'), ' filter');

  function open() {
    if (feed) release(feed);
    feed = use({ base: pathOf(k, scope.ns), as: 'table', plural: k.plural, of: id, namespaced: k.namespaced, revised: !k.live });
    shown = null; state.dataset.s = '';
    columns(); rebuild();
  }
  function columns() {
    const given = feed.columns;
    if (!given) return;
    const fresh = shown !== given;
    shown = given;
    const sort = cols[vt.sort.i]?.name;
    const st = status(k.kind, given);
    phase = st?.phase || null;
    cols = given.map(column);
    const main = Math.max(0, cols.findIndex((c) => c.name === (k.kind === 'Event' ? 'Object' : 'Name')));
    cols[main].main = 1;
    for (const c of cols) if (/^(Message|Images?)$/.test(c.name)) c.wide = 1;
    if (st) cols[st.at].cell = (td, r) => {
      const c = cols.find((x) => x.raw === st.at), p = st.phase(r.obj), t = c.get(r.obj);
      if (td.dataset.p === p + t) return;
      td.dataset.p = p + t; td.className = 'td status tx-' + p + (td.classList.contains('changed') ? ' changed' : '');
      fill(td, glyph(p), h('span', {}, t));
    };
    cols = cols.filter((c) => wide || !c.priority);
    if (k.namespaced && !scope.ns) cols.unshift({ name: 'Namespace', get: (r) => r.metadata.namespace || '' });
    const sample = [...feed.objs.values()].slice(0, 60);
    for (const c of cols) {
      const w = Math.max(c.name.length + 2, ...sample.map((r) => c.get(r).length + (c.cell ? 3 : 0)));
      c.width = c.main ? `minmax(${Math.min(w, 30)}ch, ${w / 8}fr)` : c.wide ? 'minmax(30ch, 6fr)' : `minmax(${Math.min(Math.max(w, 6), 26) + 3}ch, ${Math.min(w, 22) / 10}fr)`;
    }
    vt.setColumns(cols);
    fill(sorter, cols.map((c, i) => h('option', { value: i }, 'Sort: ' + c.name)));
    const at = (name) => cols.findIndex((c) => c.name === name), first = k.kind === 'Event' ? at('Last Seen') : cols.findIndex((c) => c.main);
    vt.sort = { i: sort && !fresh && at(sort) >= 0 ? at(sort) : Math.max(0, first), dir: vt.sort.dir };
    vt.mark(); sorter.value = vt.sort.i;
  }
  const hay = (r) => { let s = words.get(r); if (!s) words.set(r, (s = [r.metadata.name, r.metadata.namespace || '', ...r.cells, ...Object.entries(r.metadata.labels || {}).map((x) => x.join('='))].join(' ').toLowerCase())); return s; };
  const terms = () => box.value.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (r, ts) => ts.every((t) => (t[0] === '!' && t.length > 1 ? !hay(r).includes(t.slice(1)) : hay(r).includes(t)));
  function rebuild() {
    const ts = terms();
    rows = []; byKey = new Map();
    for (const [key, obj] of feed.objs) if (fits(obj, ts)) { const r = { key, obj }; rows.push(r); byKey.set(key, r); }
    vt.rows = rows; if (cols.length) vt.order(); sortedAt = performance.now(); stale = behind = false; labels();
  }
  function labels() {
    const all = feed.objs.size, n = byKey.size, denied = feed.denied, loading = !feed.ready && !denied, none = !n && !denied && !loading;
    text(count, denied || loading ? '' : n === all ? num(all) : `${num(n)} of ${num(all)}`);
    const hide = denied || none || (loading && !(all && all < 500));
    state.hidden = !hide; vt.el.hidden = !!hide;
    if (!hide) return;
    const why = denied ? 'denied' + denied.code : loading ? 'loading' : (box.value ? 'filter' + box.value : 'empty' + scope.ns) + all;
    if (loading) {
      if (state.dataset.s !== why) { state.dataset.s = why; state.bar = h('progress'); state.line = h('p', { class: 'tnum' }); fill(state, h('h2', {}, `Listing ${k.plural}`), state.bar, state.line); }
      const about = Math.max(feed.total || 0, scope.ns ? k.n : k.all);
      if (about) { state.bar.max = about; state.bar.value = all; }
      text(state.line, about ? `${num(all)} of about ${num(about)}` : num(all));
      return;
    }
    if (state.dataset.s === why) return;
    state.dataset.s = why;
    const again = () => { feed.again(); };
    if (denied) fill(state, h('div', { class: 'big' }, denied.code), h('h2', {}, denied.code === 403 ? `You may not list ${k.plural}` : `The server does not list ${k.plural}`), h('p', {}, denied.message, denied.code === 403 ? ' Ask for the verbs list and watch, or choose a namespace you may see.' : ''), h('button', { class: 'btn', type: 'button', onclick: again }, 'Try again'));
    else fill(state, h('div', { class: 'big' }, '0'), h('h2', {}, box.value ? 'Nothing matches' : `No ${k.plural}${scope.ns ? ' in ' + scope.ns : ' yet'}`), h('p', {}, box.value ? `${num(all)} ${k.plural} are hidden by “${box.value}”.` : 'The watch is open: the first one shows up here the moment it is created.'), box.value ? h('button', { class: 'btn', type: 'button', onclick: () => { box.value = ''; rebuild(); } }, 'Clear filter') : null);
  }
  box.addEventListener('input', rebuild);
  box.addEventListener('keydown', (e) => { if (e.key === 'Enter' || e.key === 'ArrowDown') { e.preventDefault(); vt.el.focus(); vt.select(0); } });

  stop.push(on((m) => {
    const ch = m.byFeed?.get(feed);
    if (ch) {
      if (feed.columns !== shown) { columns(); rebuild(); vt.resize(); } else if (!cols.length) { labels(); } else if (!feed.ready || ch.size > 3000) { if (performance.now() - sortedAt > 250) rebuild(); else behind = stale = true; } else {
        const ts = terms();
        let moved = false;
        for (const [key, e] of ch) {
          touched++;
          const r = byKey.get(key), ok = e.type !== 'DELETED' && fits(e.obj, ts);
          if (r && ok) {
            const diff = new Set();
            cols.forEach((c, j) => { if (!c.tick && c.get(r.obj) !== c.get(e.obj)) diff.add(j); });
            r.obj = e.obj; vt.flash(key, diff);
            if (vt.recent || diff.has(vt.sort.i)) moved = true;
          } else if (r) { r.gone = true; byKey.delete(key); const t = setTimeout(() => { timers.delete(t); stale = true; }, 900); timers.add(t); vt.fresh = true; } else if (ok) { const n = { key, obj: e.obj }; rows.push(n); byKey.set(key, n); vt.flash(key); stale = true; }
        }
        if (moved) stale = true;
        if (vt.fresh) { vt.fresh = false; vt.draw(); }
        if (state.hidden !== true || !byKey.size) labels();
      }
    }
    if (m.second) { text(foot.rate, `${rate(touched)} changes/s`); touched = 0; vt.tick(); text(foot.at, k.live ? 'sampled once a second' : `at revision ${num(live.rev)}`); if (!feed.ready) labels(); }
    // Rows are put in order at most once a second, and not while somebody is pointing at one.
    const aiming = performance.now() - (vt.pointerAt || -9e9) < 2500 && vt.el.matches(':hover');
    if (stale && !aiming && performance.now() - sortedAt > 1000) settle();
  }));
  function settle() { if (!cols.length) return; if (behind) return rebuild(); rows = rows.filter((r) => !r.gone); vt.rows = rows; vt.order(); sortedAt = performance.now(); stale = false; labels(); }
  const tidy = setInterval(() => { const aiming = performance.now() - (vt.pointerAt || -9e9) < 2500 && vt.el.matches(':hover'); if (stale && (behind || !aiming)) settle(); }, 1000);
  open();
  text(foot.at, k.live ? 'sampled once a second' : `at revision ${num(live.rev)}`);
  return {
    el, title: k.plural, vt, filter: box,
    scope() { open(); vt.resize(); },
    key(e) { if (e.key === 'w') wideBtn.click(); if (e.key === 'r') recent.click(); },
    ready() { vt.resize(); vt.el.focus({ preventScroll: true }); },
    destroy() { stop.forEach((f) => f()); timers.forEach(clearTimeout); clearInterval(tidy); release(feed); vt.destroy(); },
  };
}
