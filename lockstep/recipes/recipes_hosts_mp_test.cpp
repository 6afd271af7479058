// Recipes between hosts, where the parameters are divided and each rank evaluates as many batches
// as it has.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/hosts_test.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/hooks/forward_hook.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/recipes/lm_training.h"
#include "lockstep/recipes/recipe_runs_test.h"
#include "lockstep/tokenizers/characters.h"
#include "lockstep/train/run_state.h"

namespace lockstep::inline v0::recipes_hosts_mp_test {
namespace {

constexpr const char* kFolder = "LOCKSTEP_TEST_FOLDER";

TrainConfig config_of(const std::string& recipe, const std::string& folder,
                      const std::string& strategy, int64_t nproc) {
  TrainConfig config = default_config(recipe);
  config.data = folder + "/data";
  config.model = folder + "/model";
  config.output = folder + "/" + strategy;
  config.strategy = strategy;
  config.nproc = nproc;
  config.epochs = 2;
  if (recipe != "text") config.context = 8;
  config.batch_size = 2;
  config.lr = 1e-2;
  config.schedule = "constant";
  config.log_every = 1;
  config.timeout = 60;
  return resolved(config);
}

class RecipesHosts : public testing::HostsTest {
 protected:
  // Losses, evaluations, the best model and a resumed run are those of a host that has them whole.
  // `write` puts data and model into a folder.
  void expect_alike(const std::string& recipe,
                    const std::function<void(const TestDirectory& dir)>& write) {
    make_hosts(2);
    std::unique_ptr<TestDirectory> dir;
    if (!testing::in_lone_rank()) {
      dir = std::make_unique<TestDirectory>();
      write(*dir);
      ::setenv(kFolder, dir->path().c_str(), 1);
    }
    run({0, 0, 1}, [&] {
      const std::string folder = ::getenv(kFolder);
      Communicator comm = init({.timeout = std::chrono::seconds(60)});
      for (const char* strategy : {"zero3", "fsdp"}) {
        TrainConfig config = config_of(recipe, folder, strategy, comm.size());
        train_recipe(comm, config, {.progress = false});
        config.epochs = 3;
        train_recipe(comm, config, {.resume = true, .progress = false});
      }
    });
    if (dir)
      compare(config_of(recipe, *dir / "", "zero3", 3), config_of(recipe, *dir / "", "fsdp", 3));
  }

 private:
  static void compare(const TrainConfig& whole, const TrainConfig& divided) {
    for (const char* type : {"train", "test"}) {
      const auto expected = recipe_runs_test::metrics_of(whole, type);
      const auto found = recipe_runs_test::metrics_of(divided, type);
      ASSERT_GT(expected.size(), 2U);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_NEAR(found[i].at("loss"), expected[i].at("loss"), 1e-6) << type << " " << i;
    }
    const auto model_of = [&](const TrainConfig& config) {
      return read_safetensors(RunFolder{config.output}.best() / "model.safetensors").tensors;
    };
    const auto expected = model_of(whole), found = model_of(divided);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(found[i].second.allclose(expected[i].second, 1e-4, 1e-5)) << found[i].first;
  }
};

TEST_F(RecipesHosts, LayersThatHostsDivide) {
  expect_alike("lm", [](const TestDirectory& dir) {
    std::string rows;
    for (int i = 0; i < 61; ++i)
      rows += "{\"text\": \"" + std::string(static_cast<size_t>(2 + i * 7 % 11), "abcde"[i % 5]) +
              "f\"}\n";
    std::filesystem::create_directory(dir / "data");
    dir.write("data/train.jsonl", rows);
    LmConfig model;
    model.vocab_size = 7;
    model.hidden_size = 16;
    model.intermediate_size = 24;
    model.num_hidden_layers = 3;
    model.num_attention_heads = 2;
    model.max_position_embeddings = 8;
    model.tie_word_embeddings = true;  // by two units
    model.bos_token_id.reset();
    model.eos_token_ids = {0};
    torch::manual_seed(3);
    const TransformerLm lm(model);
    EXPECT_EQ(layers_of(*lm).size(), 3U);  // which are the units
    save_model(*lm,
               {.config_json = to_json(model),
                .others = tokenizers::Characters::of("abcdef\n", "t").files()},
               dir / "model");
  });
}

TEST_F(RecipesHosts, LayersOfBertThatHostsDivide) {
  expect_alike("text", [](const TestDirectory& dir) {
    const BertClassifier model = recipe_runs_test::write_texts(dir, {.train = 30, .dev = 7});
    EXPECT_EQ(layers_of(*model).size(), 2U);  // which are the units
  });
}

}  // namespace
}  // namespace lockstep::inline v0::recipes_hosts_mp_test
