#include "lockstep/pretrained/text_model.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <fstream>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"

namespace lockstep::inline v0::text_model_test {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::vector<std::string> kTokens{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
                                       "好",    "坏",    "a",     "##b"};

BertConfig small_config() {
  return {.vocab_size = 9,
          .hidden_size = 8,
          .num_hidden_layers = 2,
          .num_attention_heads = 2,
          .intermediate_size = 16,
          .max_position_embeddings = 16,
          .labels = {"坏事", "好事", "其他"}};
}

class TextModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("lockstep-text-model-" + std::to_string(::getpid()) + "-" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    torch::manual_seed(5);
    model_ = BertClassifier(small_config());
    model_->eval();
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const NamedTensors& tensors) {
    const auto tokenizer = tokenizers::BertTokenizer::from_tokens(kTokens);
    Checkpoint checkpoint;
    checkpoint.model = {.tensors = tensors, .metadata = {{"format", "pt"}}};
    checkpoint.config_json = to_json(model_->config());
    checkpoint.files = text_model_files(
        tokenizer, {.preprocessing = {.remove_spaces = true, .strip = true}, .max_length = 12});
    write_checkpoint(folder_, checkpoint);
  }
  std::string refused() const {
    try {
      load_text_model(folder_);
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "taken";
  }
  void replace(const char* name, const std::string& text) const {
    fs::remove(folder_ / "checksums.json");
    std::ofstream(folder_ / name) << text;
  }

  fs::path folder_;
  BertClassifier model_ = nullptr;
};

TEST_F(TextModelTest, ComesBackAsItWas) {
  write(module_state(*model_));
  ASSERT_TRUE(is_text_model(folder_));
  TextModel loaded = load_text_model(folder_);
  EXPECT_EQ(loaded.model->config(), model_->config());
  EXPECT_EQ(loaded.preparation.max_length, 12);
  EXPECT_TRUE(loaded.preparation.preprocessing.remove_spaces);
  const at::Tensor ids = at::tensor({2, 5, 6, 3}, at::kLong).view({1, 4});
  EXPECT_TRUE(at::equal(loaded.model->forward(ids), model_->forward(ids)));
  EXPECT_EQ(loaded.tokenizer.encode("好坏").ids, (std::vector<int32_t>{2, 5, 6, 3}));
}

TEST_F(TextModelTest, AForeignDirectoryIsTakenAsItIs) {
  write(module_state(*model_));
  fs::remove(folder_ / "lockstep.json");
  fs::remove(folder_ / "checksums.json");
  const TextModel loaded = load_text_model(folder_);
  EXPECT_EQ(loaded.preparation.max_length, 16);
  EXPECT_EQ(loaded.preparation.preprocessing, data::TextPreprocessing{});
}

TEST_F(TextModelTest, ABodyAloneGetsAClassifier) {
  NamedTensors body;
  for (const auto& [name, tensor] : module_state(*model_)) {
    if (name.starts_with("bert.")) body.emplace_back(name.substr(5), tensor);
  }
  write(body);
  EXPECT_THAT(refused(), HasSubstr("classifier.weight"));
  std::vector<std::string> drawn;
  const BertClassifier loaded = load_bert(folder_, {"ja", "nein"}, &drawn);
  EXPECT_EQ(drawn, (std::vector<std::string>{"classifier.weight", "classifier.bias"}));
  EXPECT_EQ(loaded->config().labels.size(), 2U);
  const auto mine = model_->named_parameters(), theirs = loaded->named_parameters();
  EXPECT_TRUE(at::equal(mine["bert.pooler.dense.weight"], theirs["bert.pooler.dense.weight"]));
}

TEST_F(TextModelTest, RowsOfTheClassifierFollowTheNamesOfTheClasses) {
  write(module_state(*model_));
  const at::Tensor weight = model_->named_parameters()["classifier.weight"];
  const auto rows_of = [&](const std::vector<std::string>& labels) {
    std::vector<std::string> drawn;
    const BertClassifier loaded = load_bert(folder_, labels, &drawn);
    const at::Tensor theirs = loaded->named_parameters()["classifier.weight"];
    std::vector<int64_t> rows;
    for (int64_t i = 0; i < theirs.size(0); ++i) {
      for (int64_t j = 0; j < weight.size(0); ++j)
        if (at::equal(theirs[i], weight[j])) rows.push_back(j);
    }
    EXPECT_EQ(drawn.empty(), !rows.empty());
    return rows;
  };
  using Rows = std::vector<int64_t>;
  EXPECT_EQ(rows_of({"坏事", "好事", "其他"}), (Rows{0, 1, 2}));
  EXPECT_EQ(rows_of({"其他", "坏事", "好事"}), (Rows{2, 0, 1}));
  EXPECT_EQ(rows_of({"0", "1", "2"}), (Rows{0, 1, 2}));
  // Other classes, although equally many.
  EXPECT_EQ(rows_of({"坏事", "好事", "怪事"}), Rows{});
  replace("config.json", [&] {
    BertConfig config = small_config();
    config.labels = {"NEUTRAL", "Negative", "POSITIVE"};
    return to_json(config);
  }());
  EXPECT_EQ(rows_of({"negative", "neutral", "positive"}), (Rows{1, 0, 2}));
  replace("config.json", [&] {
    BertConfig config = small_config();
    config.labels = {"LABEL_0", "LABEL_1", "LABEL_2"};
    return to_json(config);
  }());
  EXPECT_EQ(rows_of({"b", "a", "c"}), (Rows{0, 1, 2}));
}

// Whatever config.json says, no memory is allocated for a model whose tensors the files do not
// have.
TEST_F(TextModelTest, SizesAreComparedWithTheFilesBeforeAModelIsMade) {
  write(module_state(*model_));
  const size_t before = memory_use().virtual_bytes;
  const auto expect = [&](const BertConfig& config, const char* says) {
    replace("config.json", to_json(config));
    EXPECT_THAT(refused(), HasSubstr(says));
    EXPECT_THAT(message_of<CheckpointError>([&] { load_bert(folder_, {"a", "b"}); }),
                HasSubstr(says));
  };
  BertConfig config = small_config();
  config.num_hidden_layers = 1'000'000'000;
  expect(config,
         "config.json: num_hidden_layers is 1000000000, and there are tensors of 2 layers; "
         "model.safetensors does not belong to it");
  config = small_config();
  config.vocab_size = 387'000'001;
  expect(config, "its sizes are of a model of 3096");
  config = small_config();
  config.max_position_embeddings = config.type_vocab_size = config.intermediate_size =
      config.hidden_size = 1 << 30;
  expect(config, "a model of 9000000000000000 parameters");
  EXPECT_LT(memory_use().virtual_bytes, before + (size_t{1} << 30));
}

TEST_F(TextModelTest, SaysInOneLineWhatIsWrong) {
  write(module_state(*model_));
  replace("lockstep.json", "{\"max_length\": 99, \"preprocessing\": {}}");
  EXPECT_THAT(refused(), HasSubstr("lockstep.json: is not"));
  replace("lockstep.json", "{\"max_length\": 9, \"preprocessing\": {\"strp\": true}}");
  EXPECT_THAT(refused(), HasSubstr("strp"));
  fs::remove(folder_ / "lockstep.json");
  replace("vocab.txt", "[PAD]\n[UNK]\n");
  EXPECT_THAT(refused(), HasSubstr("vocab.txt"));
  replace("config.json", "{\"model_type\": \"gpt2\"}");
  EXPECT_THAT(refused(), HasSubstr("model_type is \"gpt2\"; give a config.json of BERT"));
  EXPECT_FALSE(is_text_model(folder_));
  replace("config.json", "{\"hidden_size\": \"wide\"}");
  EXPECT_THAT(refused(), HasSubstr("hidden_size is \"wide\"; give a whole number"));
  fs::remove(folder_ / "config.json");
  EXPECT_THAT(refused(), HasSubstr("config.json: is missing"));
}

}  // namespace lockstep::inline v0::text_model_test
