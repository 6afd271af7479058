#include "lockstep/report/html_page.h"

#include "lockstep/core/errors.h"
#include "lockstep/report/svg.h"

namespace lockstep::inline v0 {
namespace {

constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--paper:#fff;--ink:#1f2328;--faint:#59636e;--line:#d1d9e0;
--stripe:#f6f8fa;--mark:#0969da}
@media (prefers-color-scheme:dark){:root{--paper:#0d1117;--ink:#e6edf3;--faint:#9198a1;
--line:#3d444d;--stripe:#151b23;--mark:#4493f8}}
*{box-sizing:border-box}
body{margin:0 auto;padding:16px;max-width:1180px;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","PingFang SC",
"Microsoft YaHei","Noto Sans CJK SC",sans-serif}
h1{font-size:1.6em;line-height:1.25;margin:.4em 0}
h2{font-size:1.2em;margin:1.8em 0 .5em;padding-bottom:.2em;border-bottom:1px solid var(--line)}
.language{position:absolute;opacity:0;width:1px;height:1px}
.languages{float:right;margin-left:12px;border:1px solid var(--line);border-radius:6px;
overflow:hidden;font-size:.85em}
.languages label{display:inline-block;padding:3px 10px;cursor:pointer}
#lang-en:checked~.languages [for=lang-en],
#lang-zh:checked~.languages [for=lang-zh]{
background:var(--mark);color:var(--paper)}
#lang-en:focus-visible~.languages,#lang-zh:focus-visible~.languages{outline:2px solid var(--mark)}
#lang-en:checked~main [lang=zh],#lang-zh:checked~main [lang=en]{display:none}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9em}
th,td{padding:5px 10px;text-align:left;white-space:nowrap;border-bottom:1px solid var(--line)}
th{vertical-align:bottom;color:var(--faint);font-weight:600}
.n{text-align:right}
tbody tr:nth-child(odd) td{background:var(--stripe)}
th:first-child,td:first-child{position:sticky;left:0;background:var(--paper)}
.pictures{display:grid;gap:20px 16px;margin-top:20px;
grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr))}
.pictures svg{display:block;width:100%;max-width:600px;height:auto;margin:0 auto}
svg text{fill:var(--ink)}
svg .paper{fill:none}
svg .grid{stroke:var(--line)}
svg .axis{stroke:var(--faint)}
dl{margin:0}
dt{font-weight:600}
dd{margin:0 0 .5em;color:var(--faint)}
details{margin:.3em 0}
summary{cursor:pointer}
pre{overflow-x:auto;padding:10px;background:var(--stripe);border-radius:6px;
font:13px/1.45 ui-monospace,Menlo,Consolas,"Noto Sans Mono CJK SC",monospace}
@media (max-width:520px){body{padding:10px}h1{font-size:1.35em}table{font-size:.82em}th,td{padding:4px 6px}}
)";

// The initial language: the one after '#' in the address, otherwise the browser's.
constexpr const char* kScript = R"(
(function(){
var radios=[document.getElementById("lang-en"),document.getElementById("lang-zh")];
function tell(){document.documentElement.lang=radios[1].checked?"zh":"en"}
var wanted=location.hash.slice(1)||(navigator.language||"").slice(0,2).toLowerCase();
if(wanted==="zh")radios[1].checked=true;
radios.forEach(function(r){r.addEventListener("change",tell)});
tell();
})();
)";

std::string span(const Words& words) {
  if (words.en == words.zh) return escaped_markup(words.en);
  return "<span lang=\"en\">" + escaped_markup(words.en) + "</span><span lang=\"zh\">" +
         escaped_markup(words.zh) + "</span>";
}

std::string element(const std::string& name, const Words& words) {
  return "<" + name + ">" + span(words) + "</" + name + ">\n";
}

std::string cell(const char* name, Align align, const std::string& inner) {
  return std::string("<") + name + (align == Align::kRight ? " class=\"n\">" : ">") + inner + "</" +
         name + ">";
}

}  // namespace

HtmlPage::HtmlPage(Words title) : title_(std::move(title)) {}

void HtmlPage::heading(const Words& words) {
  body_ += element("h2", words);
}

void HtmlPage::paragraph(const Words& words) {
  body_ += element("p", words);
}

void HtmlPage::terms(const std::vector<std::pair<Words, Words>>& items) {
  body_ += "<dl>\n";
  for (const auto& [term, said] : items) body_ += element("dt", term) + element("dd", said);
  body_ += "</dl>\n";
}

void HtmlPage::table(const Sheet& table) {
  body_ += "<div class=\"wide\"><table>\n<thead><tr>";
  for (const SheetColumn& column : table.columns)
    body_ += cell("th", column.align, span(column.title));
  body_ += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    if (row.size() != table.columns.size()) {
      throw InvalidArgument("HtmlPage::table: " + std::to_string(row.size()) + " cells for " +
                            std::to_string(table.columns.size()) + " columns");
    }
    body_ += "<tr>";
    for (size_t c = 0; c < row.size(); ++c)
      body_ += cell("td", table.columns[c].align, escaped_markup(row[c]));
    body_ += "</tr>\n";
  }
  body_ += "</tbody></table></div>\n";
}

void HtmlPage::pictures(const std::vector<Words>& svgs) {
  body_ += "<div class=\"pictures\">\n";
  for (const Words& svg : svgs) {
    body_ += "<div lang=\"en\">" + svg.en + "</div>\n<div lang=\"zh\">" + svg.zh + "</div>\n";
  }
  body_ += "</div>\n";
}

void HtmlPage::folded(const Words& title, const std::string& text) {
  body_ += "<details>" + element("summary", title) + "<pre>" + escaped_markup(text) +
           "</pre></details>\n";
}

std::string HtmlPage::str() const {
  const std::string both = title_.en == title_.zh ? title_.en : title_.en + " · " + title_.zh;
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>" +
         escaped_markup(both) + "</title>\n<style>" + kStyle +
         "</style>\n</head>\n<body>\n"
         "<input class=\"language\" type=\"radio\" name=\"language\" id=\"lang-en\" "
         "autocomplete=\"off\""
         " checked><input class=\"language\" type=\"radio\" name=\"language\" id=\"lang-zh\""
         " autocomplete=\"off\">\n<div class=\"languages\"><label for=\"lang-en\">English</label>"
         "<label for=\"lang-zh\">中文</label></div>\n<main>\n" +
         element("h1", title_) + body_ + "</main>\n<script>" + kScript +
         "</script>\n</body>\n</html>\n";
}

}  // namespace lockstep::inline v0
