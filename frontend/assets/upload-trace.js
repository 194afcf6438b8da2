// A trace goes to the backend with the form's fields, as multipart straight from the browser; an empty field is not said.
(() => {
  let file = null;
  const geometry = (window.geometry = window.geometry || {});
  const set = (id, props) => window.dash_clientside.set_props(id, props);
  const take = (chosen) => {
    file = chosen;
    set("trace-file", { children: file.name });
    set("trace-report", { data: null });
  };
  const fields = () => {
    const form = new FormData(document.getElementById("trace-form"));
    for (const [name, value] of [...form]) value.trim() ? form.set(name, value.trim()) : form.delete(name);
    if (!form.has("name")) form.set("name", file.name.replace(/\.[^.]*$/, ""));
    return form;
  };
  const bring = async () => {
    if (!file) return set("trace-report", { data: { error: "Choose the file of a trace first." } });
    const form = fields();
    form.append("file", file, file.name);
    set("trace-told", { children: `Importing ${file.name} …` });
    const answer = await geometry.send("/api/v1/traces", form).catch(() => ({ error: `${file.name} did not reach the backend. Nothing was stored.` }));
    if (answer.error) return set("trace-report", { data: answer });
    set("trace-report", { data: { kept: answer } });
    geometry.change({ a: answer.id, prompts: answer.prompts });
    geometry.refresh();
  };
  (geometry.takes ??= {}).trace = take;
  document.addEventListener("click", (event) => {
    if (event.target.closest('[data-act="choose-trace"]')) geometry.choose(".npy,.npz,.json,.jsonl,.csv,.parquet,.gguf", take);
  });
  document.addEventListener("submit", (event) => {
    if (event.target.id !== "trace-form") return;
    event.preventDefault();
    bring();
  });
})();
