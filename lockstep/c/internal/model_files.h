// The files of a model of the C interface. Where it is in training the functions are collective.
#pragma once

#include <string>

namespace lockstep::inline v0::c_api {

class ScriptModel;
class Training;

// As lockstep_model_save(), lockstep_model_restore() and lockstep_model_save_script() describe
// them; `training` may be null.
void save_checkpoint(const ScriptModel& model, Training* training, const std::string& path);
void restore_checkpoint(ScriptModel& model, Training* training, const std::string& path);
void save_script(ScriptModel& model, Training* training, const std::string& path);

}  // namespace lockstep::inline v0::c_api
