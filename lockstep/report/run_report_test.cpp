#include "lockstep/report/run_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::run_report_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RunReport, DrawsLossAndAccuracyInBothLanguages) {
  const TestDirectory dir;
  dir.write("m",
            R"({"type":"train","step":10,"loss":2.0}
{"type":"train","step":20,"loss":1.5}
not JSON
{"type":"train","step":"x","loss":1}
{"type":"test","step":20,"loss":1.4,"accuracy":1.0,"samples":5}
)");
  const Words svg = run_report_svg(dir / "m", {.title = {"mnist, 2 ranks", "mnist，2 个 rank"}});
  EXPECT_THAT(svg.en, AllOf(HasSubstr("mnist, 2 ranks"), HasSubstr(">Test accuracy<"),
                            HasSubstr(">100<"), Not(HasSubstr(">102<"))));
  EXPECT_THAT(svg.zh, AllOf(HasSubstr("mnist，2 个 rank"), HasSubstr(">测试集准确率<"),
                            HasSubstr(">训练<"), Not(HasSubstr("accuracy"))));
}

TEST(RunReport, OfALanguageModelIsItsPerplexity) {
  const TestDirectory dir;
  dir.write("m",
            R"({"type":"train","step":10,"loss":2.0}
{"type":"test","step":20,"loss":1.4,"accuracy":0.4,"perplexity":142.5}
{"type":"test","step":40,"loss":1.2,"accuracy":0.5,"perplexity":120.5}
)");
  const Words svg = run_report_svg(dir / "m", {.title = {"lm", "lm"}, .held_out = "dev"});
  EXPECT_THAT(svg.en, AllOf(HasSubstr(">Dev perplexity<"), HasSubstr(">dev<"), HasSubstr(">140<"),
                            Not(HasSubstr("accuracy")), Not(HasSubstr("est"))));
  EXPECT_THAT(svg.zh, HasSubstr(">验证集困惑度<"));
}

TEST(RunReport, ChineseStandsBeside) {
  EXPECT_EQ(in_chinese("runs/a.b/report.svg"), "runs/a.b/report_zh.svg");
  EXPECT_EQ(in_chinese("report.svg"), "report_zh.svg");
}

}  // namespace lockstep::inline v0::run_report_test
