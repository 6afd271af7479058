#include "lockstep/cli/engine/inference/saved_model.h"

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/recipes/image_training.h"
#include "lockstep/train/run_folder.h"

namespace lockstep::inline v0::engine {

SavedModel load_model(const std::filesystem::path& path) {
  SavedModel saved;
  saved.path = find_checkpoint(path);
  const Checkpoint checkpoint = read_checkpoint(saved.path, CheckpointParts::kModelAndConfig);
  saved.config =
      train_config_from_json(checkpoint.config_json, (saved.path / "config.json").string());
  saved.model = make_image_model(saved.config);
  set_module_state(*saved.model, checkpoint.model.tensors,
                   (saved.path / "model.safetensors").string());
  saved.model->eval();
  return saved;
}

}  // namespace lockstep::inline v0::engine
