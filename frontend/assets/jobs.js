// Progress of questions under way. At most three event streams are open at once: a browser allows six connections to one origin, and
// the page itself needs some. Jobs beyond the third are seen by a slow poll, which also feeds the chip and the list of jobs.
(() => {
  const MOST_STREAMS = 3;
  const streams = new Map();
  const states = new Map();
  const told = new Map();
  const AGAIN = 10000;
  const waitedFor = new Map();
  const over = (job) => job && !["waiting", "running"].includes(job.state);
  // setting a property of a component that is not (or no longer) on the page throws inside the renderer
  const set = (id, props) => { if (document.getElementById("main")) window.dash_clientside.set_props(id, props); };
  const plates = () => [...document.querySelectorAll(".plate[data-jobs]")].map((p) => ({ plate: p, key: p.dataset.key, jobs: JSON.parse(p.dataset.jobs) })).filter((p) => p.jobs.length);
  const duration = (s) => (s < 1 ? "" : s < 90 ? `about ${Math.round(s)} s left` : `about ${Math.round(s / 60)} min left`);

  const progress = ({ plate, jobs }) => {
    const known = jobs.map((id) => states.get(id)).filter(Boolean);
    const current = known.find((j) => j.state === "running") ?? known.find((j) => !over(j));
    const bar = plate.querySelector("progress");
    if (!known.length || !bar) return;
    const say = (name, text) => { plate.querySelector(`[data-told=${name}]`).textContent = text; };
    const done = jobs.reduce((sum, id) => sum + (over(states.get(id)) ? 1 : states.get(id)?.fraction ?? 0), 0) / jobs.length;
    bar.value = done;
    say("stage", current?.stage || (current?.state === "running" ? "starting" : "waiting for the worker"));
    say("eta", current?.eta_seconds ? duration(current.eta_seconds) : "");
  };
  // a plate is looked at again whenever one of its jobs ends, so that a figure of many runs grows while the rest is under way
  const finish = ({ plate, key, jobs }) => {
    const ended = jobs.filter((id) => over(states.get(id)));
    const mark = key + ended.join();
    const whole = ended.length === jobs.length;
    // A plate that still waits for jobs which have all ended did not hear of it: it is told again, or it would wait for ever.
    if (!ended.length || (told.has(mark) && !(whole && Date.now() - told.get(mark) > AGAIN))) return;
    told.set(mark, Date.now());
    const all = waitedFor.get(key) ?? new Set();
    ended.forEach((id) => all.add(id));
    whole ? waitedFor.delete(key) : waitedFor.set(key, all);
    const failed = [...all].map((id) => states.get(id)).filter((j) => j.state === "failed").map((j) => j.message || "The job failed without a word.");
    window.geometry.look([plate.closest(".slot")], { failed });
  };
  const note = (job) => {
    states.set(job.id, job);
    if (over(job)) { streams.get(job.id)?.close(); streams.delete(job.id); }
    for (const plate of plates()) if (plate.jobs.includes(job.id)) { progress(plate); finish(plate); }
    if (over(job)) sync();
  };
  const listen = (id) => {
    const source = new EventSource(`/api/v1/jobs/${id}/events`);
    streams.set(id, source);
    for (const name of ["progress", "done", "failed", "cancelled"]) source.addEventListener(name, (event) => note(JSON.parse(event.data)));
    source.onerror = () => { source.close(); streams.delete(id); };
  };
  function sync() {
    const wanted = [...new Set(plates().flatMap((p) => p.jobs))].filter((id) => !over(states.get(id)));
    for (const [id, source] of streams) if (!wanted.includes(id)) { source.close(); streams.delete(id); }
    for (const id of wanted) if (!streams.has(id) && streams.size < MOST_STREAMS) listen(id);
    plates().forEach(finish);
    return wanted.length > 0;
  }

  let last = "", timer = 0;
  const poll = async () => {
    clearTimeout(timer);
    let active = sync();
    try {
      const answer = await fetch("/api/v1/jobs");
      const jobs = answer.ok ? (await answer.json()).jobs : [];
      active = active || jobs.some((j) => !over(j));
      const text = JSON.stringify(jobs);
      if (text !== last && document.getElementById("main")) { last = text; set("jobs-data", { data: jobs }); }
      const wanted = new Set(plates().flatMap((p) => p.jobs));
      jobs.filter((j) => wanted.has(j.id) && !streams.has(j.id)).forEach(note);
    } catch { /* the backend is away: the page says so where it matters */ }
    timer = setTimeout(poll, document.hidden ? 20000 : active ? 1500 : 8000);
  };
  window.geometry = window.geometry || {};
  window.geometry.poll = poll;

  let pending = 0;
  const start = () => {
    new MutationObserver(() => { clearTimeout(pending); pending = setTimeout(() => { if (sync()) poll(); }, 60); })
      .observe(document.body, { subtree: true, attributes: true, attributeFilter: ["data-jobs"], childList: true });
    setTimeout(poll, 400);
  };
  document.body ? start() : document.addEventListener("DOMContentLoaded", start);
})();
