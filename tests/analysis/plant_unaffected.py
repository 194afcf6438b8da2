"""Which measures a plant leaves alone, beside those that say so in a row of their own."""

OF_ROWS = ("nested", "subset", "collapsed")
"""What measures of the router's rows cannot see: these plants are in the tokens and in who serves them."""

UNAFFECTED: dict[str, tuple[str, ...]] = {
    "dead_experts": ("duplicated", "rotated", "disjoint", "nested", "subset"),
    "probability_entropy": ("subset",),
    "router_z_loss": ("subset",),
    "routing_information": ("subset",),
    "routing_margin": ("subset", "dead"),
    "router_common_mode": OF_ROWS,
    "router_cosine": OF_ROWS,
    "router_drift": OF_ROWS,
    "router_row_difference": OF_ROWS,
    "router_mean_cosine": OF_ROWS,
    "router_orthogonality": OF_ROWS,
    "router_spectrum": OF_ROWS,
    "expert_router_coupling": OF_ROWS,
    "router_gate_response": OF_ROWS,
    "weight_similarity": OF_ROWS,
    "rank_profile": ("subset",),
    "jacobian_alignment": ("subset",),
    "jacobian_linear_share": ("turned", "subset"),
    "jacobian_spectrum": ("subset",),
    "output_similarity": ("subset",),
    "centred_kernel_alignment": ("turned", "subset"),
    "expert_embedding": ("turned",),
    "router_row_map": OF_ROWS,
    "living_experts": ("common", "turned", "identical", "duplicated", "rotated", "disjoint", "nested", "subset"),
}

TOO_FEW: dict[str, tuple[str, ...]] = {
    "signature_embedding": ("identical", "duplicated", "rotated", "nested", "subset"),
}
"""All prompts have one signature there, of which no map is drawn."""
