"""The workloads of OSLO's tutorial on fusing models of transformers, measured again."""
