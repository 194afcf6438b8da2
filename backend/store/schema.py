"""The catalogue's tables, as the list of steps that lead to them; a store of an older number is brought up on opening.

A step that has shipped is never edited: a change is a new step at the end.
"""

from __future__ import annotations

_FIRST = """
CREATE TABLE checkpoints (id VARCHAR PRIMARY KEY, source VARCHAR, fingerprint VARCHAR, about JSON, created VARCHAR);
CREATE TABLE prompt_sets (name VARCHAR PRIMARY KEY, digest VARCHAR, count INTEGER, characters BIGINT, created VARCHAR);
CREATE TABLE prompts (prompt_set VARCHAR, position INTEGER, id VARCHAR, text VARCHAR, category VARCHAR);
CREATE TABLE artifacts (
  digest VARCHAR PRIMARY KEY, kind VARCHAR, dtype VARCHAR, shape BIGINT[], bytes BIGINT, path VARCHAR);
CREATE TABLE states (key VARCHAR PRIMARY KEY, statistic VARCHAR, meta JSON, artifact VARCHAR, created VARCHAR);
CREATE TABLE answers (
  key VARCHAR PRIMARY KEY, measure VARCHAR, checkpoint VARCHAR, checkpoint_b VARCHAR, prompts VARCHAR, knobs JSON,
  unit VARCHAR, tokens BIGINT, provenance JSON, artifact VARCHAR, created VARCHAR);
CREATE TABLE answer_values (
  key VARCHAR, measure VARCHAR, checkpoint VARCHAR, checkpoint_b VARCHAR, prompts VARCHAR,
  axis1 VARCHAR, label1 VARCHAR, axis2 VARCHAR, label2 VARCHAR, axis3 VARCHAR, label3 VARCHAR,
  value DOUBLE, low DOUBLE, high DOUBLE, null_mean DOUBLE, null_low DOUBLE, null_high DOUBLE);
CREATE TABLE jobs (
  id VARCHAR PRIMARY KEY, key VARCHAR, measure VARCHAR, state VARCHAR,
  created VARCHAR, started VARCHAR, finished VARCHAR, about JSON);
"""

_SECOND = """
ALTER TABLE answers ADD COLUMN device VARCHAR;
ALTER TABLE answers ADD COLUMN seconds DOUBLE;
UPDATE answers SET device = provenance->>'device', seconds = TRY_CAST(provenance->>'seconds' AS DOUBLE);
CREATE TABLE signatures (
  key VARCHAR, checkpoint VARCHAR, fingerprint VARCHAR, prompt VARCHAR, prompt_digest VARCHAR,
  layer VARCHAR, expert INTEGER, selected BIGINT, served BIGINT, weight DOUBLE, tokens BIGINT);
CREATE TABLE chunks (key VARCHAR, position INTEGER, artifact VARCHAR, about JSON, PRIMARY KEY (key, position));
CREATE VIEW layer_scalars AS
  SELECT key, measure, checkpoint, checkpoint_b, prompts, label1 AS layer,
    value, low, high, null_mean, null_low, null_high
  FROM answer_values WHERE axis1 = 'layer' AND axis2 IS NULL;
CREATE VIEW embeddings AS
  SELECT key, measure, checkpoint, prompts, label1 AS prompt, label2 AS coordinate, value
  FROM answer_values WHERE axis1 = 'prompt' AND axis2 = 'coordinate';
CREATE VIEW loads AS
  SELECT key, checkpoint, prompts, label1 AS layer, label2 AS expert, value AS load, low, high, null_low, null_high
  FROM answer_values WHERE measure = 'expert_load';
"""

_THIRD = """
CREATE TABLE answer_checkpoints (key VARCHAR, position INTEGER, checkpoint VARCHAR);
INSERT INTO answer_checkpoints
  SELECT key, unnest(range(len(ids))), unnest(ids)
  FROM (SELECT key, json_extract_string(provenance, '$.checkpoints[*].id') AS ids FROM answers);
INSERT INTO answer_checkpoints
  SELECT key, position, checkpoint
  FROM (
    SELECT key, 0 AS position, checkpoint FROM answers UNION ALL SELECT key, 1, checkpoint_b FROM answers)
  WHERE checkpoint IS NOT NULL AND key NOT IN (SELECT key FROM answer_checkpoints);
"""

_FOURTH = """
DROP VIEW embeddings;
CREATE VIEW embeddings AS
  SELECT key, measure, checkpoint, prompts, axis1 AS kind, label1 AS label, label2 AS coordinate, value
  FROM answer_values WHERE axis2 = 'coordinate';
"""

_FIFTH = """
CREATE TABLE answer_arrays (key VARCHAR, name VARCHAR, artifact VARCHAR);
CREATE VIEW arrays AS
  SELECT key, measure, checkpoint, prompts, name, dtype, shape, bytes, path
  FROM answer_arrays JOIN answers USING (key) JOIN artifacts ON artifacts.digest = answer_arrays.artifact;
"""

_SIXTH = """
ALTER TABLE answer_values ADD COLUMN axis4 VARCHAR;
ALTER TABLE answer_values ADD COLUMN label4 VARCHAR;
CREATE VIEW trajectories AS
  SELECT key, measure, prompts, label1 AS layer, label2 AS step, label3 AS expert, label4 AS coordinate, value
  FROM answer_values WHERE axis2 = 'step' AND axis3 = 'expert' AND axis4 = 'coordinate';
"""

STEPS: tuple[str, ...] = (_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, _SIXTH)
"""STEPS[n] leads from schema n to schema n + 1."""

SCHEMA = len(STEPS)
