// The version of this site beside its name; a choice where several versions stand side by side. `scripts/docs --publish` writes
// versions-list.js, which each version of the site has.
document.addEventListener("DOMContentLoaded", () => {
  const versions = window.lockstepVersions;
  const place = document.querySelector(".md-header__topic");
  if (!versions || !place) return;
  if (versions.all.length < 2) {
    const shown = document.createElement("span");
    shown.className = "lockstep-version";
    shown.textContent = versions.own;
    place.appendChild(shown);
    return;
  }
  const choice = document.createElement("select");
  choice.className = "lockstep-version";
  choice.setAttribute("aria-label", "version");
  for (const version of versions.all) choice.add(new Option(version, version, false, version === versions.own));
  choice.addEventListener("change", () => {
    // This page of that version may not exist; its first page does.
    const base = new URL(JSON.parse(document.getElementById("__config").textContent).base + "/", location);
    const up = document.documentElement.lang === "zh" ? "../../" : "../";
    const language = document.documentElement.lang === "zh" ? "zh/" : "";
    location = new URL(`${up}${choice.value}/${language}index.html`, base);
  });
  place.appendChild(choice);
});
