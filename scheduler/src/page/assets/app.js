// Which page, its data every two seconds, and the token that the data needs.

import { h, renew, show } from './dom.js';
import { fleetReset } from './fleet.js';
import { route } from './views.js';

const EVERY = 2000;
const KEY = 'aliquot-token';
const main = document.getElementById('main');
const state = document.getElementById('state');
const leave = document.getElementById('leave');

let here = null; // The route that is shown.
let shown = null; // The answer that is shown.
let timer = 0;
let renewed = false; // The address changed, and fields are to say so.
let turn = 0; // Answers of older turns are dropped.

function say(words, bad = false) {
  if (state.textContent !== words) state.textContent = words;
  state.classList.toggle('bad', bad);
}

function put(title, parts) {
  document.title = `${title} - Aliquot`;
  const focus = document.activeElement?.id;
  show(main, h('h1', { id: 'title' }, title), ...parts);
  // A row that moved takes the focus with it.
  if (focus && document.activeElement?.id !== focus) document.getElementById(focus)?.focus({ preventScroll: true });
}

// The token lives as long as this tab, and nowhere else.
function ask(why) {
  const field = h('textarea', { id: 'token', autocomplete: 'off', spellcheck: 'false', required: true });
  const take = (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, document.getElementById('token').value.trim());
    main.replaceChildren();
    load();
  };
  put('Who are you?', [h('p', { class: 'bad', id: 'why' }, why),
    h('p', {}, 'This page shows what your Kubernetes token may list. To make one: '), h('pre', {}, 'kubectl create token ACCOUNT --audience aliquot.dev/page --duration 8h'),
    h('form', { id: 'ask', onsubmit: take }, h('label', {}, 'Token', field), h('button', { id: 'enter' }, 'Show'))]);
  document.getElementById('token').focus();
}

// By address: the last response, and its tag.
const known = new Map();

class Unknown extends Error {}

async function get(address, headers) {
  const before = known.get(address);
  const answer = await fetch(address, { headers: before ? { ...headers, 'if-none-match': before.tag } : headers, cache: 'no-store' });
  if (answer.status === 304) return before.body;
  const body = await answer.json();
  if (answer.status === 401) throw new Unknown(body.error);
  if (!answer.ok) return { error: body.error };
  known.set(address, { tag: answer.headers.get('etag') ?? '', body });
  return body;
}

/** What the page needs; the answers of other pages are forgotten. */
async function gather(wanted, headers) {
  const address = typeof wanted.data === 'function' ? wanted.data() : wanted.data;
  const body = await get(address, headers);
  const places = body.error || !wanted.more ? [] : Object.entries(wanted.more(body));
  const answers = await Promise.all(places.map(async ([name, place]) => [name, await get(place, headers)]));
  const used = new Set([address, ...places.map(([, place]) => place)]);
  for (const place of known.keys()) if (!used.has(place)) known.delete(place);
  return { body, more: Object.fromEntries(answers) };
}

async function load() {
  clearTimeout(timer);
  const mine = ++turn;
  const wanted = here;
  if (!wanted) return;
  const token = sessionStorage.getItem(KEY);
  const headers = {};
  if (token) headers.authorization = `Bearer ${token}`;
  leave.hidden = !token;
  try {
    const { body, more } = await gather(wanted, headers);
    if (mine !== turn) return;
    if (body.error) {
      shown = null;
      put('Nothing to show', [h('p', {}, body.error)]);
    } else {
      shown = { wanted, body, more };
      if (renewed) renew();
      renewed = false;
      redraw();
    }
    say('Live');
  } catch (error) {
    if (mine !== turn) return;
    if (error instanceof Unknown) {
      forget();
      leave.hidden = true;
      say('');
      if (!document.getElementById('ask')) ask(token ? error.message : '');
      return;
    }
    say('No answer: the data shown may be old', true);
  }
  if (!wanted.once) schedule();
}

/** The last answer once more: the cursor or the window has moved. */
function redraw() {
  if (!shown || shown.wanted !== here) return;
  const { wanted, body, more } = shown;
  put(...wanted.view(body, { ...wanted, more }));
  wanted.after?.();
}

function forget() {
  sessionStorage.removeItem(KEY);
  known.clear();
  fleetReset();
  shown = null;
}

function schedule() {
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(load, EVERY);
}

function move(first) {
  const next = route(location.hash || '#/');
  const same = next && here && next.view === here.view && next.uid === here.uid && next.name === here.name;
  here = next;
  for (const link of document.querySelectorAll('nav a')) {
    const on = next && link.getAttribute('href') === `#/${next.page}`;
    if (on) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  if (!next) {
    turn += 1;
    put('No such page', [h('p', {}, 'Choose one above.')]);
    return;
  }
  if (same && shown && next.instant) {
    // Another picture of what is there already.
    shown = { ...shown, wanted: next };
    renew();
    redraw();
  }
  renewed = same;
  if (!same) {
    main.replaceChildren(h('p', {}, 'Loading…'));
    // A change of page by keyboard moves the focus to its top.
    if (!first) main.focus();
  }
  load();
}

leave.addEventListener('click', () => {
  forget();
  main.replaceChildren();
  load();
});
window.addEventListener('redraw', redraw);
window.addEventListener('resize', redraw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
window.addEventListener('hashchange', () => { if (location.hash !== '#main') move(false); });
document.addEventListener('visibilitychange', () => { if (!document.hidden) load(); });
document.querySelector('.skip').addEventListener('click', (event) => { event.preventDefault(); main.focus(); });
move(true);
