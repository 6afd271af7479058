// The files of a model of the C interface. Where it is in training the functions are collective.
#pragma once

namespace lockstep::inline v0::c_api {

class ScriptModel;
class Training;

// As lockstep_model_save(), lockstep_model_restore() and lockstep_model_save_script() describe
// them; `training` may be null. A NULL path is an error of which the other ranks learn.
void save_checkpoint(const ScriptModel& model, Training* training, const char* path);
void restore_checkpoint(ScriptModel& model, Training* training, const char* path);
void save_script(ScriptModel& model, Training* training, const char* path);

}  // namespace lockstep::inline v0::c_api
