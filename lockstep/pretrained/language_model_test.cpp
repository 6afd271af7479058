#include "lockstep/pretrained/language_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <filesystem>

#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/slice_index.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/model/sampling.h"

namespace lockstep::inline v0::language_model_test {
namespace {

using ::testing::HasSubstr;
using tokenizers::Characters;

LmConfig small(bool tied) {
  LmConfig config;
  config.vocab_size = 4;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.max_position_embeddings = 16;
  config.tie_word_embeddings = tied;
  config.bos_token_id.reset();
  config.eos_token_ids.clear();
  return config;
}

TransformerLm write_model(const TestDirectory& dir, bool tied) {
  torch::manual_seed(1);
  TransformerLm model(small(tied));
  save(model, dir.path() / "model.safetensors");
  dir.write("config.json", to_json(model->config()));
  for (const auto& [name, text] : Characters::of("abc\n", "t").files()) dir.write(name, text);
  return model;
}

TEST(LanguageModel, ComesBackFromItsDirectory) {
  for (const bool tied : {false, true}) {
    const TestDirectory dir;
    TransformerLm model = write_model(dir, tied);
    ASSERT_TRUE(is_language_model(dir.path()));
    LanguageModel loaded = load_language_model(dir.path());
    EXPECT_FALSE(loaded.model->is_training());
    model->eval();
    const at::Tensor ids = at::tensor({0, 1, 2, 3, 1}, at::kLong).reshape({1, 5});
    EXPECT_TRUE(at::equal(loaded.model->forward(ids), model->forward(ids)));
    EXPECT_EQ(loaded.tokenizer.encode("ab").size(), 2u);
    EXPECT_EQ(loaded.generation, GenerationConfig());
    dir.write("generation_config.json", R"({"temperature": 0.5, "eos_token_id": 3})");
    EXPECT_EQ(load_language_model(dir.path()).generation,
              (GenerationConfig{.temperature = 0.5, .eos_token_ids = {3}}));
  }
}

// One by one, as save_pretrained() writes them, or all of a layer in one tensor, as models of
// transformers 5 are.
TEST(LanguageModel, ExpertsAreReadInBothForms) {
  for (const int64_t shared : {0, 12}) {
    LmConfig config = small(false);
    config.num_local_experts = 3;
    config.shared_expert_intermediate_size = shared;
    torch::manual_seed(1);
    TransformerLm model(config);
    const ExpertNames names = expert_names(config);
    const at::Tensor ids = at::tensor({0, 1, 2, 3, 1}, at::kLong).reshape({1, 5});
    const at::Tensor expected = model->forward(ids);
    NamedTensors fused;
    const auto of = model->named_parameters();
    for (const auto& item : of) {
      std::string name = item.key();
      const size_t at = name.find(names.block);
      if (at != std::string::npos) name.replace(at, std::string(names.block).size(), "mlp");
      if (!is_expert_parameter(name)) fused.emplace_back(name, item.value().detach());
    }
    for (int64_t layer = 0; layer < 2; ++layer) {
      const std::string where = "model.layers." + std::to_string(layer) + ".";
      std::vector<at::Tensor> both, down;
      for (int64_t e = 0; e < 3; ++e) {
        const auto weight = [&](const char* name) {
          return of[where + names.block + ".experts." + std::to_string(e) + "." + name + ".weight"]
              .detach();
        };
        both.push_back(torch::cat({weight(names.gate), weight(names.up)}));
        down.push_back(weight(names.down));
      }
      fused.emplace_back(where + "mlp.experts.gate_up_proj", torch::stack(both));
      fused.emplace_back(where + "mlp.experts.down_proj", torch::stack(down));
    }
    const TestDirectory one_by_one, together;
    for (const TestDirectory* dir : {&one_by_one, &together})
      dir->write("config.json", to_json(config));
    save(model, one_by_one.path() / "model.safetensors");
    write_safetensors(together.path() / "model.safetensors", fused);
    for (const TestDirectory* dir : {&one_by_one, &together}) {
      EXPECT_TRUE(is_language_model(dir->path()));
      TransformerLm loaded = load_lm(dir->path());
      EXPECT_TRUE(at::equal(loaded->forward(ids), expected));
    }
    fused.pop_back();
    write_safetensors(together.path() / "model.safetensors", fused);
    EXPECT_THAT(message_of<CheckpointError>([&] { load_lm(together.path()); }),
                HasSubstr(std::string("experts.0.") + names.down));
  }
}

TEST(LanguageModel, OtherWritersHabitsAreTaken) {
  const TestDirectory dir;
  const TransformerLm model = write_model(dir, true);
  NamedTensors state = module_state(*model);
  for (auto& entry : state) entry.second = entry.second.to(at::kBFloat16);
  state.emplace_back("lm_head.weight", at::zeros({4, 8}));
  state.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", at::zeros({2}));
  for (auto& entry : state) entry.first = "module._orig_mod." + entry.first;
  write_safetensors(dir.path() / "model.safetensors", state);
  const TransformerLm loaded = load_lm(dir.path());
  EXPECT_TRUE(loaded->is_training());
  EXPECT_TRUE(
      at::equal(loaded->parameters()[0], model->parameters()[0].to(at::kBFloat16).to(at::kFloat)));
}

// The files' bytes show their format; sharded_tensors_test tests torch.save's files.
TEST(LanguageModel, SeveralFilesWithTheOlderIndex) {
  const TestDirectory dir;
  const TransformerLm model = write_model(dir, false);
  std::filesystem::remove(dir / "model.safetensors");
  const NamedTensors state = module_state(*model);
  write_safetensors(dir / "pytorch_model-00001-of-00002.bin", {state.front()});
  write_safetensors(dir / "pytorch_model-00002-of-00002.bin",
                    NamedTensors(state.begin() + 1, state.end()));
  dir.write("pytorch_model.bin.index.json", R"({"weight_map":{")" + state.front().first +
                                                R"(":"pytorch_model-00001-of-00002.bin",")" +
                                                state.back().first +
                                                R"(":"pytorch_model-00002-of-00002.bin"}})");
  const TransformerLm loaded = load_lm(dir.path());
  EXPECT_TRUE(at::equal(loaded->parameters().front(), model->parameters().front()));
  EXPECT_TRUE(at::equal(loaded->parameters().back(), model->parameters().back()));
}

TEST(LanguageModel, ValuesComeAPartAtATime) {
  const TestDirectory dir;
  const TransformerLm model = write_model(dir, false);
  NamedTensors state = module_state(*model);
  for (auto& entry : state) entry.second = entry.second.to(at::kBFloat16);
  write_safetensors(dir.path() / "model.safetensors", state);
  const TransformerLm empty = lm_without_values(dir.path());
  const auto part_of = lm_stored_parts(dir.path(), empty);
  for (const auto& [name, values] : state) {
    const at::Tensor part = at::empty({values.numel() - 3});
    part_of(name, 2, part);
    EXPECT_TRUE(at::equal(part, values.flatten().slice(0, 2, values.numel() - 1).to(at::kFloat)))
        << name;
  }
  check_language_model(dir.path());
}

// Written by ranks that divided the model, with the columns of a matrix in two files.
TEST(LanguageModel, SlicesOfADividedModel) {
  const TestDirectory dir;
  const TransformerLm model = write_model(dir, false);
  std::filesystem::remove(dir / "model.safetensors");
  const std::string divided = "model.layers.0.mlp.down_proj.weight";
  SliceIndex index;
  NamedTensors first, second;
  for (const auto& [name, tensor] : module_state(*model)) {
    IndexedTensor& entry = index.tensors[name];
    entry = {.dtype = "F32",
             .shape = tensor.sizes().vec(),
             .strides = row_strides(tensor.sizes().vec()),
             .slices = {{"1", 0, tensor.numel()}}};
    if (name != divided) {
      first.emplace_back(name, tensor);
      continue;
    }
    const int64_t rows = tensor.size(0), half = tensor.size(1) / 2;
    first.emplace_back(name, tensor.narrow(1, 0, half));
    second.emplace_back(name, tensor.narrow(1, half, half));
    entry.slices = {{"1", 0, rows * half, {{0, 0}, {rows, half}}},
                    {"2", 0, rows * half, {{0, half}, {rows, 2 * half}}}};
  }
  write_safetensors(dir / "1", first);
  write_safetensors(dir / "2", second);
  dir.write("model.slices.json", format_slice_index(index));
  const TransformerLm loaded = load_lm(dir.path());
  for (const auto& item : model->named_parameters())
    EXPECT_TRUE(at::equal(loaded->named_parameters()[item.key()], item.value())) << item.key();
  check_language_model(dir.path());
}

TEST(LanguageModel, FilesOfAnotherModelAreRefusedBeforeAValueIsRead) {
  const TestDirectory dir;
  const TransformerLm model = write_model(dir, false);
  const auto refused = [&](NamedTensors state) {
    write_safetensors(dir.path() / "model.safetensors", state);
    return message_of<CheckpointError>([&] { check_language_model(dir.path()); });
  };
  NamedTensors more = module_state(*model);
  more.emplace_back("model.layers.2.mlp.up_proj.weight", at::zeros({12, 8}));
  EXPECT_THAT(refused(more), HasSubstr("model.layers.2.mlp.up_proj.weight"));
  NamedTensors fewer = module_state(*model);
  const std::string left_out = fewer.back().first;
  fewer.pop_back();
  EXPECT_THAT(refused(fewer), HasSubstr(left_out));
  NamedTensors other = module_state(*model);
  other.front().second = at::zeros({3, 8});
  EXPECT_THAT(refused(other), HasSubstr(other.front().first));
}

// Whatever config.json says, no memory is allocated for a model whose tensors the files do not
// have.
TEST(LanguageModel, SizesAreComparedWithTheFilesBeforeAModelIsMade) {
  const TestDirectory dir;
  write_model(dir, false);
  const size_t before = memory_use().virtual_bytes;
  const auto refused = [&](const LmConfig& config) {
    dir.write("config.json", to_json(config));
    const std::string said = message_of<CheckpointError>([&] { load_language_model(dir.path()); });
    for (const auto& load :
         {+[](const std::filesystem::path& path) { lm_without_values(path); },
          +[](const std::filesystem::path& path) { check_language_model(path); }})
      EXPECT_EQ(message_of<CheckpointError>([&] { load(dir.path()); }), said);
    return said;
  };
  LmConfig config = small(false);
  config.num_hidden_layers = 1'000'000'000;
  EXPECT_THAT(refused(config),
              HasSubstr("config.json: num_hidden_layers is 1000000000, and there are tensors of 2 "
                        "layers; model.safetensors does not belong to it"));
  config = small(false);
  config.vocab_size = 387'000'001;
  EXPECT_THAT(refused(config), HasSubstr("its sizes are of a model of 6192"));
  config = small(false);
  config.num_local_experts = 65536;
  config.intermediate_size = 1 << 20;
  EXPECT_THAT(refused(config), HasSubstr("its sizes are of a model of 329"));
  config.hidden_size = config.intermediate_size = config.vocab_size = 1 << 30;
  EXPECT_THAT(refused(config), HasSubstr("a model of 9000000000000000 parameters"));
  EXPECT_LT(memory_use().virtual_bytes, before + (size_t{1} << 30));
}

TEST(LanguageModel, WhatIsWrongIsNamed) {
  const TestDirectory dir;
  const auto error = [&] {
    return message_of<CheckpointError>([&] { load_language_model(dir.path()); });
  };
  EXPECT_FALSE(is_language_model(dir.path()));
  write_model(dir, false);
  dir.write("config.json", R"({"model_type": "gpt2"})");
  EXPECT_FALSE(is_language_model(dir.path()));
  EXPECT_THAT(error(), HasSubstr("model_type"));
  write_model(dir, false);
  std::filesystem::remove(dir.path() / "characters.json");
  EXPECT_THAT(error(), HasSubstr("has neither characters.json"));
  for (const auto& [name, text] : Characters::of("abcdef", "t").files()) dir.write(name, text);
  EXPECT_THAT(error(), HasSubstr("6 tokens, the model only 4"));
  std::filesystem::remove(dir.path() / "model.safetensors");
  EXPECT_THAT(error(), HasSubstr("holds no model.safetensors"));
}

}  // namespace
}  // namespace lockstep::inline v0::language_model_test
