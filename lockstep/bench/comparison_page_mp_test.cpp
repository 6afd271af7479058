// The page in a real browser, if there is one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>

#include <string>

#include "lockstep/bench/comparison_page.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::bench::comparison_page_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string output_of(const std::string& line) {
  std::string output;
  FILE* pipe = ::popen((line + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return output;
  char part[4096];
  while (const size_t n = ::fread(part, 1, sizeof part, pipe)) output.append(part, n);
  ::pclose(pipe);
  return output;
}

std::string browser() {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
    if (!output_of(std::string("command -v ") + name).empty()) return name;
  }
  return {};
}

Comparison nine() {
  Comparison comparison{.model = "mini",
                        .data = "d",
                        .recipe = "",
                        .processor = "",
                        .date = "",
                        .methods = {},
                        .scaling = {}};
  for (int i = 0; i < 9; ++i) {
    const std::string name = "a_method_of_some_length_" + std::to_string(i);
    RunResult result;
    result.method = name;
    result.steps = 100;
    result.samples = 6400;
    result.seconds = 60.0 + i;
    result.samples_per_s = 6400 / result.seconds;
    result.losses.assign(100, 1.5);
    result.confusion = ConfusionMatrix({"其他", "喜好"}, {5, 1, 2, 6});
    result.parts_s = {{1, 2, 3, 4, 5}};
    comparison.methods.push_back({name, "the-tutorials-name-of-it", result, ""});
  }
  return comparison;
}

// The page is inspected at its end, after its own script and style sheet have run.
constexpr const char* kProbe = R"(<script>
(function(){
var shown={en:0,zh:0};
document.querySelectorAll("main [lang]").forEach(function(e){
  if(getComputedStyle(e).display!=="none")shown[e.lang]++});
var root=document.documentElement;
root.dataset.shown=(shown.en>0?"en":"")+(shown.zh>0?"zh":"");
root.dataset.wide=root.scrollWidth>root.clientWidth?"yes":"no";
})();
</script></body>)";

TEST(ComparisonPage, ABrowserShowsOneLanguageAndFitsAPhone) {
  const std::string name = browser();
  if (name.empty()) GTEST_SKIP() << "no chromium, chromium-browser or google-chrome here";
  const TestDirectory dir;
  std::string html = comparison_page(nine());
  html.replace(html.find("</body>"), 7, kProbe);
  const std::string page = dir.write("page.html", html).string();
  const auto dom = [&](const std::string& part) {
    return output_of("timeout 60 " + name +
                     " --headless --no-sandbox --disable-gpu --lang=en-US --window-size=500,900" +
                     " --user-data-dir='" + (dir / "profile").string() + "' --dump-dom 'file://" +
                     page + part + "'")
        .substr(0, 400);
  };
  const std::string en = dom("");
  if (en.empty()) GTEST_SKIP() << name << " does not start here";
  EXPECT_THAT(en, AllOf(HasSubstr("lang=\"en\""), HasSubstr("data-shown=\"en\""),
                        HasSubstr("data-wide=\"no\"")));
  EXPECT_THAT(dom("#zh"), AllOf(HasSubstr("lang=\"zh\""), HasSubstr("data-shown=\"zh\""),
                                HasSubstr("data-wide=\"no\"")));
}

}  // namespace
}  // namespace lockstep::inline v0::bench::comparison_page_test
