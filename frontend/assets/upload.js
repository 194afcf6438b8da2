// Files go to the backend as multipart straight from the browser: a callback would carry them as base64 inside JSON.
(() => {
  let file = null;
  const set = (id, props) => window.dash_clientside.set_props(id, props);
  const say = (text) => { const told = document.getElementById("upload-told"); if (told) told.textContent = text; };
  const acts = (window.geometry = window.geometry || {});
  acts.send = async (path, form) => {
    const response = await fetch(path, { method: "POST", body: form });
    const answer = await response.json().catch(() => ({ detail: `The backend answered ${response.status}.` }));
    return response.ok ? answer : { error: typeof answer.detail === "string" ? answer.detail : answer.title || "The file was refused.", asks: answer.asks };
  };
  acts.choose = (accept, take) => {
    const input = document.createElement("input");
    input.type = "file";
    input.accept = accept;
    input.addEventListener("change", () => input.files[0] && take(input.files[0]));
    input.click();
  };
  const send = (path) => {
    const form = new FormData();
    form.append("file", file, file.name);
    return acts.send(path, form);
  };
  const preview = async (chosen) => {
    file = chosen;
    say(`Reading ${file.name} …`);
    try { set("report", { data: { ...(await send("/api/v1/prompts/preview")), bytes: file.size } }); }
    catch { set("report", { data: { error: `${file.name} did not reach the backend. Nothing was stored.` } }); }
    say("");
  };
  const bring = async () => {
    if (!file) return;
    say(`Importing ${file.name} …`);
    const answer = await send("/api/v1/prompts").catch(() => ({ error: "The backend did not answer. Nothing was stored." }));
    say("");
    if (answer.error) return set("report", { data: answer });
    set("report", { data: { imported: answer.name, prompts: answer.prompts } });
    acts.change({ prompts: answer.name });
    acts.refresh();
  };
  document.addEventListener("click", (event) => {
    const act = event.target.closest("[data-act]")?.dataset.act;
    if (act === "choose-file") acts.choose(".jsonl,.csv,.txt", preview);
    if (act === "import-file") bring();
  });
  const zone = (event) => event.target.closest?.("[data-drop]");
  for (const name of ["dragenter", "dragover"]) document.addEventListener(name, (event) => { event.preventDefault(); zone(event)?.classList.add("over"); });
  document.addEventListener("dragleave", (event) => zone(event)?.classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    zone(event)?.classList.remove("over");
    if (zone(event) && event.dataTransfer.files[0]) acts.takes[zone(event).dataset.drop](event.dataTransfer.files[0]);
  });
  (acts.takes ??= {}).prompts = preview;
})();
