#include "lockstep/report/html_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::html_page_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

HtmlPage some_page() {
  HtmlPage page({"A <title>", "标题"});
  page.heading({"Heading", "小标题"});
  page.paragraph(same_words("the same & more"));
  page.table({.columns = {{{"method", "方法"}, Align::kLeft}, {{"minutes", "分钟"}}},
              .rows = {{"<script>", "1.5"}}});
  page.pictures({{"<svg>en</svg>", "<svg>zh</svg>"}});
  page.folded({"more", "更多"}, "a < b\n其他");
  page.terms({{{"term", "词"}, {"said", "解释"}}});
  return page;
}

TEST(HtmlPage, HasBothLanguagesAndEscapesTexts) {
  const std::string html = some_page().str();
  EXPECT_THAT(html, AllOf(HasSubstr("<span lang=\"en\">A &lt;title&gt;</span>"),
                          HasSubstr("<span lang=\"zh\">小标题</span>"),
                          HasSubstr("<p>the same &amp; more</p>"), HasSubstr("&lt;script&gt;"),
                          HasSubstr("<td class=\"n\">1.5</td>"), HasSubstr("a &lt; b\n其他"),
                          HasSubstr("<div lang=\"zh\"><svg>zh</svg></div>")));
}

// Nothing is fetched: a page sent by mail, or opened without a network, is complete.
TEST(HtmlPage, NamesNothingOutsideItself) {
  const std::string html = some_page().str();
  for (const char* what : {"http://", "https://", "src=", "<link", "@import", "url("})
    EXPECT_THAT(html, Not(HasSubstr(what)));
}

TEST(HtmlPage, EveryElementThatOpensCloses) {
  const std::string html = some_page().str();
  for (const char* name :
       {"html",    "head",    "body", "main",   "table", "thead", "tbody", "tr", "th",
        "td",      "div",     "span", "dl",     "dt",    "dd",    "p",     "h1", "h2",
        "details", "summary", "pre",  "script", "style", "title", "label"}) {
    const auto count = [&](const std::string& begin) {
      size_t found = 0;
      for (size_t at = html.find(begin); at != std::string::npos; at = html.find(begin, at + 1)) {
        const char next = html[at + begin.size()];
        found += next == '>' || next == ' ' ? 1 : 0;
      }
      return found;
    };
    EXPECT_GT(count(std::string("<") + name), 0u) << name;
    EXPECT_EQ(count(std::string("<") + name), count(std::string("</") + name)) << name;
  }
}

TEST(HtmlPage, RefusesARowOfAnotherLength) {
  HtmlPage page(same_words("x"));
  EXPECT_THROW(page.table({.columns = {{same_words("a")}}, .rows = {{"1", "2"}}}), InvalidArgument);
}

}  // namespace lockstep::inline v0::html_page_test
